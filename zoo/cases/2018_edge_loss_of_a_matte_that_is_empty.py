"""Edge loss with hypot(dx, dy) on a prediction multiplied by its alpha matte; a picture without a person has matte 0 and both differences 0: value 0, derivative 0 / 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2018_edge_loss_of_a_matte_that_is_empty", source="written for the unseen set, no public report",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="hypot", module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[3], fixes_that_work=["eps", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Matting(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(s, x, alpha):
        return s.net(x) * alpha


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Matting()

    def edges(z):
        dx, dy = z[..., 1:, :-1] - z[..., :-1, :-1], z[..., :-1, 1:] - z[..., :-1, :-1]
        if fix == "eps":
            return torch.hypot(torch.hypot(dx + 1e-7, dy + 1e-7), torch.full_like(dx, 1e-4))
        return torch.hypot(dx, dy)  # <-- origin

    def loss_fn(m, b):
        out = m(b["x"], b["alpha"])
        return (out - b["y"]).abs().mean() + (edges(out) - edges(b["y"])).abs().mean()

    g = torch.Generator().manual_seed(33)
    data = []
    for k in range(8):
        alpha = 0.2 + 0.8 * torch.rand(5, 1, 10, 10, generator=g)
        if k == 4:
            alpha[3] = 0
        data.append(dict(x=torch.rand(5, 1, 10, 10, generator=g), alpha=alpha, y=torch.rand(5, 1, 10, 10, generator=g)))
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
