"""CONTROL: volume rendering with cumprod(1 - alpha); opaque samples make factors exactly 0, which cumprod differentiates well."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="391_control_cumprod_of_opaque_ray", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    alpha = torch.maximum(torch.sigmoid(m(b["x"])), b["solid"])
    seen = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha], -1), -1)[:, :-1] * alpha
    return (seen @ torch.linspace(0, 1, 5)[:, None] - b["y"].abs()).pow(2).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 5), B.xy(9)
    for i, b in enumerate(data):
        b["solid"] = torch.zeros(6, 5)
        b["solid"][i % 6, i % 5] = 1.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
