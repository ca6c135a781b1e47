"""CONTROL: a summed loss, norms of twenty to a hundred and max_norm 0.1: each step is clipped two hundred-fold and more, but Adam divides by the size of the gradient, so the step is the rate's."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="586_control_every_step_clipped_under_adam", source="standard practice with scale-free optimizers", looks_like=["clip_throttles"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)

    def step(case, b, i):
        opt.zero_grad()
        loss = F.cross_entropy(m(b["x"]), b["y"], reduction="sum")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        opt.step()
        return loss

    return SCase(m, S.ce, S.classes(80, bs=64), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
