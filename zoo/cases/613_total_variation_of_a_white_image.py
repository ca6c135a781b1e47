"""Isotropic total variation sqrt(dx^2 + dy^2) as a regulariser. An overexposed picture saturates the sigmoid to exactly 1 everywhere: the
loss is finite, the derivative of the root at 0 is not."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="613_total_variation_of_a_white_image", source="common report: isotropic total variation without eps",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[1],
             fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 1, 3, padding=1)

    def forward(self, noisy):
        return torch.sigmoid(noisy + 0.3 * self.b(F.elu(self.a(noisy))))


def total_variation(img, how):
    dx = img[..., :-1, 1:] - img[..., :-1, :-1]
    dy = img[..., 1:, :-1] - img[..., :-1, :-1]
    sq = dx.square() + dy.square()
    if how == "eps":
        sq = sq + 1e-8
    elif how == "clamp":
        sq = sq.clamp(min=1e-8)
    return sq.sqrt().mean()  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g = Denoiser(), torch.Generator().manual_seed(18)

    def objective(net, batch):
        clean = net(batch["noisy"])
        return F.l1_loss(clean, batch["clean"]) + 0.05 * total_variation(clean, fix)

    data = []
    for _ in range(9):
        c = torch.rand(4, 1, 7, 7, generator=g)
        data.append(dict(noisy=torch.logit(c, 1e-2) + 0.2 * torch.randn(c.shape, generator=g), clean=c))
    data[5]["noisy"][1] = 400.0
    data[5]["clean"][1] = 1.0
    return Case(net, objective, data, torch.optim.Adam(net.parameters(), lr=1e-3))
