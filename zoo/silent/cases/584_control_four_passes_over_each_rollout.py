"""CONTROL: PPO on a contextual bandit: each rollout is used for four updates in a row (the same batch again, by design), with the old log-probabilities kept as plain numbers."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="584_control_four_passes_over_each_rollout", source="standard practice (PPO)", looks_like=["repeated_batch", "detached_graph"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.4)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4)), torch.Generator().manual_seed(11)
    batches = [b for b in S.classes(60, bs=32) for _ in range(4)]
    test = S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    roll = {}

    def step(case, b, i):
        if i % 4 == 0:
            with torch.no_grad():
                lp = torch.log_softmax(m(b["x"]), -1)
                a = torch.multinomial(lp.exp(), 1, generator=g)[:, 0]
                r = (a == b["y"]).float()
                roll.update(a=a, old=lp.gather(1, a[:, None])[:, 0], adv=r - r.mean())
        lp = torch.log_softmax(m(b["x"]), -1)
        ratio = (lp.gather(1, roll["a"][:, None])[:, 0] - roll["old"]).exp()
        loss = -torch.minimum(ratio * roll["adv"], ratio.clamp(0.8, 1.2) * roll["adv"]).mean() + 0.01 * (lp.exp() * lp).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return SCase(m, S.ce, batches, opt, step=step, quality=lambda c: S.heldout_err(m, test))
