"""A memory-saving batch norm (after InPlaceABN): backward recovers the normalised input from the output, xhat = (y - beta) / gamma. The
last norm of every residual branch is initialised with gamma = 0, as one does for residual nets."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="627_inplace_norm_with_zero_gain", source="https://github.com/mapillary/inplace_abn/issues/172",
             symptom="nan_grad", phase="backward", cause="zero_division", op="div", module="blocks.1.norm2", module_also=["blocks.0.norm2"], line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "init"}


class InvertibleNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, floor):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        inv = (var + 1e-5).rsqrt()
        y = (x - mean) * inv * (gamma + floor) + beta
        ctx.save_for_backward(y, gamma, beta, inv)
        ctx.floor = floor
        return y

    @staticmethod
    def backward(ctx, gy):
        y, gamma, beta, inv = ctx.saved_tensors
        gain = gamma + ctx.floor
        xhat = (y - beta) / gain  # <-- origin
        g = gy * gain
        gx = inv * (g - g.mean(0) - xhat * (g * xhat).mean(0))
        return gx, (gy * xhat).sum(0), gy.sum(0), None


class Norm(nn.Module):
    def __init__(self, d, gain, floor):
        super().__init__()
        self.weight, self.bias, self.floor = nn.Parameter(torch.full((d,), gain)), nn.Parameter(torch.zeros(d)), floor

    def forward(self, x):
        return InvertibleNorm.apply(x, self.weight, self.bias, self.floor)


class Residual(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        floor = 1e-3 if fix == "eps" else 0.0
        self.fc1, self.norm1 = nn.Linear(d, d), Norm(d, 1.0, floor)
        self.fc2, self.norm2 = nn.Linear(d, d), Norm(d, 0.5 if fix == "init" else 0.0, floor)

    def forward(self, x):
        return x + self.norm2(self.fc2(F.leaky_relu(self.norm1(self.fc1(x)))))


class Net(nn.Module):
    def __init__(self, fix, d=8):
        super().__init__()
        self.blocks = nn.Sequential(Residual(d, fix), Residual(d, fix))
        self.head = nn.Linear(d, 3)

    def forward(self, x):
        return self.head(self.blocks(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(29)
    data = [(torch.randn(10, 8, generator=g), torch.randint(0, 3, (10,), generator=g)) for _ in range(8)]
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9))
