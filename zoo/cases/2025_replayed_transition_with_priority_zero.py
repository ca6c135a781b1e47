"""Prioritised replay: w = (N P) ** -beta. A transition whose stored TD error was exactly 0 has priority 0; its weight is infinite and the division by the largest weight makes inf / inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2025_replayed_transition_with_priority_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="pow", module=None, line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[5], fixes_that_work=["eps", "clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class DuelingQ(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.value, s.advantage = B.mlp(5, 32, 32, nn.ReLU), nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(s, o):
        h = torch.relu(s.body(o))
        a = s.advantage(h)
        return s.value(h) + a - a.mean(-1, keepdim=True)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = DuelingQ()

    def loss_fn(m, b):
        q = m(b["obs"]).gather(1, b["act"][:, None]).squeeze(1)
        with torch.no_grad():
            target = b["rew"] + 0.9 * m(b["next"]).max(-1).values
        p = b["priority"]
        if fix == "eps":
            p = p + 1e-6
        if fix == "clamp":
            p = p.clamp(min=1e-6)
        w = (1000 * p).pow(-0.6)  # <-- origin
        return (w / w.max() * F.smooth_l1_loss(q, target, reduction="none")).mean()

    g = torch.Generator().manual_seed(47)
    data = [dict(obs=torch.randn(8, 5, generator=g), next=torch.randn(8, 5, generator=g), act=torch.randint(0, 3, (8,), generator=g),
                 rew=torch.randn(8, generator=g), priority=0.001 + 0.01 * torch.rand(8, generator=g)) for _ in range(11)]
    data[8]["priority"][5] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
