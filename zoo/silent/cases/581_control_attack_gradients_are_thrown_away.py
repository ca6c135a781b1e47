"""CONTROL: adversarial training. backward for the attack, zero_grad, backward for the update, step: the first gradients are meant to be thrown away."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="581_control_attack_gradients_are_thrown_away", source="standard practice (FGSM training)", looks_like=["accumulation_cleared", "zero_grad_before_step"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.7)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)

    def step(case, b, i):
        x = b["x"].clone().requires_grad_(True)
        F.cross_entropy(m(x), b["y"]).backward()
        adv = (x + 0.1 * x.grad.sign()).detach()
        opt.zero_grad()
        loss = F.cross_entropy(m(adv), b["y"])
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return SCase(m, S.ce, S.classes(80), opt, step=step, quality=lambda c: S.heldout_ce(m, test))
