"""A count model takes log of softplus(x): for one row the rate underflows to 0, and with a count of 0 the term is 0 * -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="303_poisson_rate_underflow", source="common report: Poisson likelihood of a softplus rate",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log", op_also=["mul"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Counter(nn.Module):
    def __init__(s):
        super().__init__()
        s.inner, s.out = nn.Linear(8, 12), nn.Linear(12, 1)

    def forward(s, x):
        return F.softplus(s.out(F.elu(s.inner(x)))).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Counter(), B.xy(9), torch.Generator().manual_seed(1)

    def loss_fn(m, b):
        rate = m(b["x"])
        if fix == "eps":
            rate = rate + 1e-6
        return (rate - b["count"] * torch.log(rate)).mean()  # <-- origin

    with torch.no_grad():
        m.inner.weight.abs_(), m.out.weight.abs_().neg_()
    for b in data:
        b["count"] = torch.poisson(torch.rand(6, generator=g) * 3, generator=g)
    data[6]["x"][3], data[6]["count"][3] = data[6]["x"][3].abs() * 400 + 300, 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
