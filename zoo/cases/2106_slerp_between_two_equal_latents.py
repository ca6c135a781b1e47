"""Latents of two images are mixed along the great circle, with a where() that falls back to the straight line for close ones. The sampler drew the same image twice: the
angle is 0, the unused branch 0 / 0, and the gradient goes through it all the same."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2106_slerp_between_two_equal_latents", source="written for the unseen set, no public report",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", op_also=["mul", "sin"], module="mix", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where"}


class Slerp(nn.Module):
    fix = None

    def forward(s, a, b, t):
        chord = torch.linalg.vector_norm(F.normalize(a, dim=-1) - F.normalize(b, dim=-1), dim=-1, keepdim=True)
        omega = 2 * torch.asin((chord / 2).clamp(max=0.999))
        near = omega < 1e-4
        so = torch.sin(omega)
        if s.fix == "double_where":
            so = torch.where(near, torch.ones_like(so), so)
        arc = torch.sin((1 - t) * omega) / so * a + torch.sin(t * omega) / so * b  # <-- origin
        return torch.where(near, (1 - t) * a + t * b, arc)


class Interpolator(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.enc, s.mix, s.dec = nn.Linear(20, 8), Slerp(), nn.Linear(8, 20)
        s.mix.fix = fix

    def forward(s, x, y, t):
        return s.dec(s.mix(s.enc(x), s.enc(y), t))


def loss_fn(m, b):
    out, t = m(b["x"], b["y"], b["t"]), b["t"]
    return ((1 - t) * (out - b["x"]).square() + t * (out - b["y"]).square()).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Interpolator(fix)
    g = torch.Generator().manual_seed(14)
    data = [dict(x=torch.randn(6, 20, generator=g), y=torch.randn(6, 20, generator=g), t=torch.rand(6, 1, generator=g)) for _ in range(9)]
    data[4]["y"][1] = data[4]["x"][1]
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
