"""Speed from positions and learned (warped) times. Under bf16 autocast the times come out of a linear layer with eight bits; five minutes into a recording four a second are the same number and the step between them is zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2114_sampling_times_collide_in_bf16", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="speed", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["fp32", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Speed(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.warp, s.fix = nn.Linear(1, 1), fix
        nn.init.ones_(s.warp.weight)
        nn.init.zeros_(s.warp.bias)

    def forward(s, pos, t):
        tau = s.warp(t[..., None]).squeeze(-1)
        dt = tau[:, 1:] - tau[:, :-1]
        if s.fix == "eps":
            dt = dt + 1e-2
        return (pos[:, 1:] - pos[:, :-1]) / dt  # <-- origin


class Gait(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.speed, s.norm, s.head = Speed(fix), nn.LayerNorm(12), B.mlp(12, 24, 3)

    def forward(s, pos, t):
        return s.head(s.norm(s.speed(pos, t).float()))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Gait(fix)
    g = torch.Generator().manual_seed(62)
    data = []
    for k in range(9):
        start = torch.randint(0, 4, (6, 1), generator=g).float()
        if k == 5:
            start[3] = 300.0
        data.append(dict(pos=torch.randn(6, 13, generator=g).cumsum(1), t=start + 0.25 * torch.arange(13), y=torch.randint(0, 3, (6,), generator=g)))
    return Case(m, lambda m, b: F.cross_entropy(m(b["pos"], b["t"]).float(), b["y"]), data, B.adam(m, 1e-3), autocast=torch.bfloat16)
