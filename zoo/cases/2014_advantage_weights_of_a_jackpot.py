"""Advantage-weighted regression: exp(A / beta) with beta 0.05 overflows for the one episode that hit the jackpot."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2014_advantage_weights_of_a_jackpot", source="written for the unseen set, no public report",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[2], fixes_that_work=["clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "eps"])
FIXES = {"clamp"}


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.pi, s.v = B.mlp(7, 32, 3), B.mlp(7, 32, 1)

    def forward(s, o):
        return torch.log_softmax(s.pi(o), -1), s.v(o).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Agent()

    def loss_fn(m, b):
        lp, v = m(b["obs"])
        a = (b["ret"] - v.detach()) / 0.05
        if fix == "clamp":
            a = a.clamp(max=5.0)
        w = torch.exp(a)  # <-- origin
        actor = -(w * lp.gather(1, b["act"][:, None]).squeeze(1)).mean()
        return actor + (v - b["ret"]).pow(2).mean()

    g = torch.Generator().manual_seed(13)
    data = [dict(obs=torch.randn(6, 7, generator=g), act=torch.randint(0, 3, (6,), generator=g), ret=torch.randn(6, generator=g) * 0.1) for _ in range(10)]
    data[7]["ret"][2] = 9.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
