"""A learned Yeo-Johnson transform picks its branch with where; for a value below -1 the other branch is (x + 1) ** lambda of a negative base: NaN, not selected, and in the gradient all the same."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2020_yeo_johnson_of_a_large_refund", source="written for the unseen set, no public report",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="pow", op_also=["where"], module="power", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 4], fixes_that_work=["double_where", "clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "eps"])
FIXES = {"double_where", "clamp"}


class YeoJohnson(nn.Module):
    def __init__(s, d, fix):
        super().__init__()
        s.lam, s.fix = nn.Parameter(torch.full((d,), 0.8)), fix

    def forward(s, x):
        up, down = x, x
        if s.fix == "double_where":
            up, down = torch.where(x >= 0, x, torch.zeros_like(x)), torch.where(x < 0, x, torch.zeros_like(x))
        if s.fix == "clamp":
            up, down = x.clamp(min=0), x.clamp(max=0)
        a = ((up + 1) ** s.lam - 1) / s.lam  # <-- origin
        return torch.where(x >= 0, a, -((1 - down) ** (2 - s.lam) - 1) / (2 - s.lam))


class Spend(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.power, s.net = YeoJohnson(4, fix), B.mlp(4, 24, 1)

    def forward(s, x):
        return s.net(s.power(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Spend(fix)
    g = torch.Generator().manual_seed(37)
    data = []
    for k in range(9):
        x = torch.rand(6, 4, generator=g) * 0.9
        x[:, 1] -= 0.8  # small refunds are common and harmless
        if k == 6:
            x[0, 2], x[4, 0] = -40.0, -3.5
        data.append(dict(x=x, y=torch.randn(6, 1, generator=g)))
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 3e-3))
