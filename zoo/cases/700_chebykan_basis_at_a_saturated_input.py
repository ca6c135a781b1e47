"""A Kolmogorov-Arnold network with Chebyshev polynomials: T_n(x) = cos(n * acos(tanh(x))). A sample with one raw reading saturates the
tanh to exactly 1, where acos is fine and its derivative is not. The layer is checkpointed."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from protocol import Case
TRUTH = dict(id="700_chebykan_basis_at_a_saturated_input", source="https://github.com/SynodicMonth/ChebyKAN/issues/11",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="acos", module="kan.2", line_marker="# <-- origin", first_bad_step=5, bad_rows=[1, 4],
             fixes_that_work=["clamp", "shrink", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "shrink"}


class ChebyKANLayer(nn.Module):
    def __init__(self, inp, out, degree, fix):
        super().__init__()
        self.coeffs, self.fix = nn.Parameter(torch.randn(inp, out, degree + 1) / (inp * (degree + 1))), fix
        self.register_buffer("arange", torch.arange(degree + 1.0))

    def forward(self, x):
        x = torch.tanh(x)
        if self.fix == "clamp":
            x = x.clamp(-1 + 1e-6, 1 - 1e-6)
        if self.fix == "shrink":
            x = 0.99 * x
        theta = torch.acos(x).unsqueeze(-1)  # <-- origin
        return torch.einsum("bid,iod->bo", torch.cos(theta * self.arange), self.coeffs)


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.kan = nn.Sequential(ChebyKANLayer(6, 8, 3, fix), nn.Linear(8, 8), ChebyKANLayer(8, 1, 3, fix))

    def forward(self, x, gain):
        h = self.kan[1](self.kan[0](self.norm(x)))
        return checkpoint(self.kan[2], h * gain, use_reentrant=False)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(70)
    data = []
    for _ in range(9):
        x = torch.randn(6, 6, generator=g)
        data.append([x, torch.ones(6, 1), x[:, :2].prod(1, keepdim=True)])
    data[5][1][[1, 4]] = 400.0  # the amplifier was left at its highest gain
    return Case(m, lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), data, torch.optim.Adam(m.parameters(), lr=2e-3))
