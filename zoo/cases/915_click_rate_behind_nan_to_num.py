"""A rate feature learned clicks / learned impressions is cleaned with nan_to_num: for an item never shown the forward value is 0, but
the derivative of 0/0 goes through nan_to_num's zero as 0 * inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="915_click_rate_behind_nan_to_num", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", op_also=["mul"], module="rate", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["double_where", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"double_where", "eps"}


class Rate(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((7,), 0.5))   # weight of each of the last seven days

    def forward(s, clicks, shown):
        a, b = clicks @ s.w, shown @ s.w
        if s.fix == "double_where":
            ok = b > 0
            return torch.where(ok, a / torch.where(ok, b, torch.ones_like(b)), torch.zeros_like(a))
        if s.fix == "eps":
            b = b + 1e-6
        return torch.nan_to_num(a / b)  # <-- origin


class CTR(nn.Module):
    def __init__(s):
        super().__init__()
        s.rate, s.deep, s.out = Rate(), B.mlp(8, 24, 8, nn.ReLU), nn.Linear(9, 1)

    def forward(s, x, clicks, shown):
        return s.out(torch.cat([s.deep(x), s.rate(clicks, shown)[:, None]], 1)).squeeze(-1)


def loss_fn(m, b):
    return F.binary_cross_entropy_with_logits(m(b["x"], b["clicks"], b["shown"]), b["c"])


def make(seed=0, fix=None):
    m, data, g = CTR(), B.xy(11), torch.Generator().manual_seed(15)
    m.rate.fix = fix
    for b in data:
        b["shown"] = torch.randint(1, 50, (6, 7), generator=g).float()
        b["clicks"] = (b["shown"] * torch.rand(6, 7, generator=g)).round()
        b["c"] = (torch.rand(6, generator=g) > 0.5).float()
    data[6]["shown"][1], data[6]["clicks"][1] = 0.0, 0.0
    return Case(m, loss_fn, data, B.adam(m))
