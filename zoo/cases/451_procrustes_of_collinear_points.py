"""Learned keypoints are aligned to a template by SVD; the keypoints of one sample lie on a line, two singular values are equal (zero), and
the derivative of the singular vectors does not exist."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="451_procrustes_of_collinear_points", source="common report: Kabsch/Procrustes layer gives NaN gradients for degenerate point sets", symptom="nan_grad", phase="backward", cause="domain_edge_grad",
             op="linalg_svd", op_also=["svd"], module="align", line_marker="# <-- origin", first_bad_step=4, bad_rows=[1], fixes_that_work=["eps", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Align(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def rotation(self, a, b):
        h = a.transpose(-1, -2) @ b
        if self.fix == "eps":
            h = h + torch.diag(torch.tensor([1e-2, 2e-2, 3e-2]))
        u, s, v = torch.linalg.svd(h)  # <-- origin
        return u @ v

    def forward(self, a, b):
        a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
        return ((a @ self.rotation(a, b) - b) ** 2).mean()


class Keypoints(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.scale, self.shift, self.align = nn.Parameter(torch.ones(3)), nn.Linear(3, 3), Align(fix)
        nn.init.zeros_(self.shift.weight)

    def forward(self, cloud, template):
        return self.align(cloud * self.scale + self.shift(cloud), template)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Keypoints(fix), torch.Generator().manual_seed(5)
    data = [dict(cloud=torch.randn(4, 6, 3, generator=g), template=torch.randn(4, 6, 3, generator=g)) for _ in range(5)]
    data[4]["cloud"][1, :, 1:] = 0.0  # on the x axis
    data[4]["template"][1] = data[4]["cloud"][1] * 2

    return Case(m, lambda m, b: m(b["cloud"], b["template"]), data, B.sgd(m, 1e-2))
