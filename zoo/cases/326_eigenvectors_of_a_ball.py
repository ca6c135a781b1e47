"""Principal axes by eigh: one cloud is a single point with no spread at all, and the derivative of eigenvectors divides by the difference
of equal eigenvalues."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="326_eigenvectors_of_a_ball", source="common report: gradients of eigh with repeated eigenvalues",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="linalg_eigh", op_also=["div", "eigh"], module="axes", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["jitter", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"jitter"}


class Axes(nn.Module):
    fix = None

    def forward(s, c):
        if s.fix == "jitter":
            c = c + torch.diag(torch.tensor([1e-2, 2e-2, 3e-2]))
        return torch.linalg.eigh(c)[1]  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stretch, s.axes = nn.Parameter(torch.ones(3)), Axes()

    def forward(s, c):
        return s.axes(s.stretch[:, None] * c * s.stretch)


def loss_fn(m, b):
    return (m(b["c"]).abs() - b["y"]).pow(2).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Net(), torch.Generator().manual_seed(2), []
    m.axes.fix = fix
    for _ in range(5):
        a = torch.randn(4, 6, 3, generator=g)
        data.append(dict(c=a.transpose(1, 2) @ a / 6, y=torch.rand(4, 3, 3, generator=g)))
    data[4]["c"][1] = 0.0                         # every point of the cloud is the same
    return Case(m, loss_fn, data, B.sgd(m, 1e-2))
