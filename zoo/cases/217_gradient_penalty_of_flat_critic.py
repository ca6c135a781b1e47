"""WGAN-GP: the norm of the critic's input gradient is sqrt(sum(g^2)); for a padded sample that gradient is exactly 0, so the
second backward pass through sqrt is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="217_gradient_penalty_of_flat_critic", source="https://github.com/pytorch/pytorch/issues/2534",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul", "pow"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Critic(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2 = nn.Linear(6, 24), nn.Linear(24, 1)

    def forward(s, x, valid):
        return s.fc2(torch.tanh(s.fc1(x)))[:, 0] * valid


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Critic()

    def penalty(m, x, valid):
        x = x.detach().requires_grad_(True)
        g, = torch.autograd.grad(m(x, valid).sum(), x, create_graph=True)
        slope = g.pow(2).sum(1)
        if fix == "eps":
            slope = slope + 1e-12
        norm = slope.sqrt()  # <-- origin
        return ((norm - 1) ** 2).mean()

    def loss_fn(m, b):
        mix = b["t"] * b["real"] + (1 - b["t"]) * b["fake"]
        return (m(b["fake"], b["valid"]) - m(b["real"], b["valid"])).mean() + 10 * penalty(m, mix, b["valid"])

    g = torch.Generator().manual_seed(7)
    data = [dict(real=torch.randn(5, 6, generator=g), fake=torch.randn(5, 6, generator=g) + 1, t=torch.rand(5, 1, generator=g), valid=torch.ones(5)) for _ in range(10)]
    data[6]["valid"][1] = 0.0
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.0, 0.9)))
