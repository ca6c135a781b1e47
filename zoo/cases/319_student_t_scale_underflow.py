"""A heavy-tailed likelihood with a predicted scale: softplus underflows to 0 for one row and the residual is divided by it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="319_student_t_scale_underflow", source="common report: predicted scale collapses to zero",
             symptom="inf_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Regressor(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.mean, s.spread = nn.Linear(8, 12), nn.Linear(12, 1), nn.Linear(12, 1)

    def forward(s, x):
        h = F.relu(s.body(x))
        return s.mean(h), F.softplus(s.spread(h))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Regressor(), B.xy(9)

    def loss_fn(m, b):
        mean, spread = m(b["x"])
        if fix == "eps":
            spread = spread + 1e-4
        z = (b["y"] - mean) / spread  # <-- origin
        nu = torch.tensor(4.0)
        body = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2)
        return (0.5 * (nu + 1) * torch.log1p(z.pow(2) / nu) + spread - body).mean()

    with torch.no_grad():
        m.spread.weight.abs_().neg_()
    data[6]["x"][2] *= 800.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
