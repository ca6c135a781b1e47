"""Actor-critic: illegal moves get -inf, their probability is exactly 0 and the entropy bonus p * log p is 0 * -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1326_masked_action_entropy", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log", op_also=["mul"], module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0, 4], fixes_that_work=["eps", "finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "bonus_down"])
FIXES = {"eps", "finfo_min", "bonus_down"}


class ActorCritic(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.pi, s.v = nn.Sequential(nn.Linear(10, 24), nn.ELU()), nn.Linear(24, 7), nn.Linear(24, 1)

    def forward(s, obs):
        h = s.body(obs)
        return s.pi(h), s.v(h).squeeze(-1)


def make(seed=0, fix=None):
    m, g = ActorCritic(), torch.Generator().manual_seed(15)
    c = 1e-4 if fix == "bonus_down" else 0.01

    def loss_fn(m, b):
        lg, v = m(b["obs"])
        lg = lg.masked_fill(~b["legal"], -50.0 if fix == "finfo_min" else float("-inf"))
        lp = F.log_softmax(lg, -1).gather(1, b["act"][:, None]).squeeze(1)
        p = F.softmax(lg, -1)
        ent = -(p * torch.log(p.clamp_min(1e-8) if fix == "eps" else p)).sum(-1)  # <-- origin
        return (-(b["adv"] * lp) + 0.5 * (v - b["ret"]).pow(2) - c * ent).mean()

    data = []
    for _ in range(10):
        data.append(dict(obs=torch.randn(6, 10, generator=g), act=torch.randint(0, 4, (6,), generator=g), adv=torch.randn(6, generator=g),
                         ret=torch.randn(6, generator=g), legal=torch.ones(6, 7, dtype=torch.bool)))
    data[5]["legal"][0, 5:] = False
    data[5]["legal"][4, 6] = False
    return Case(m, loss_fn, data, B.adam(m))
