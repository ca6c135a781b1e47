"""Deep kernel learning: a network feeds a Matern-3/2 kernel whose distance is a plain square root. On the diagonal every point has the
distance 0 to itself; the kernel is 1 there, the derivative of the root is infinite. It fails at the first step."""
import math
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="706_matern_kernel_meets_its_diagonal", source="common report: Matern kernel gradient nan on the diagonal (GPyTorch clamps the distance)",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", module="covar", line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "clamp", "vector_norm"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "clamp", "vector_norm"}


class Matern32(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.raw_length, self.fix = nn.Parameter(torch.zeros(d)), fix

    def forward(self, a, b):
        diff = (a[:, None] - b[None]) / nn.functional.softplus(self.raw_length)
        if self.fix == "vector_norm":
            r = torch.linalg.vector_norm(diff, dim=-1)
        else:
            sq = diff.square().sum(-1)
            sq = sq + 1e-9 if self.fix == "eps" else sq.clamp_min(1e-12) if self.fix == "clamp" else sq
            r = sq.sqrt()  # <-- origin
        return (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r)


class DeepKernelGP(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.features, self.covar = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)), Matern32(2, fix)
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        z = self.features(x)
        return self.covar(z, z) + self.log_noise.exp() * torch.eye(len(x), dtype=x.dtype)


def mll(gp, batch):
    K = gp(batch["x"])
    L, _ = torch.linalg.cholesky_ex(K)
    alpha = torch.cholesky_solve(batch["y"][:, None], L)
    return (0.5 * batch["y"] @ alpha[:, 0] + L.diagonal().log().sum()) / len(K)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    gp, g = DeepKernelGP(fix), torch.Generator().manual_seed(76)
    data = []
    for _ in range(6):
        x = torch.randn(12, 4, generator=g)
        data.append({"x": x, "y": torch.sin(2 * x[:, 0])})
    return Case(gp, mll, data, torch.optim.Adam(gp.parameters(), lr=1e-2))
