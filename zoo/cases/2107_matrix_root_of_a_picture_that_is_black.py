"""Second-order pooling by a hand-written autograd Function (Newton-Schulz root of the covariance, scaled by its trace). A black picture leaves no feature alive: the trace is zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2107_matrix_root_of_a_picture_that_is_black", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="root", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


def newton_schulz(a, steps=4):
    eye = torch.eye(a.shape[-1]).expand_as(a)
    y, z = a, eye
    for _ in range(steps):
        t = 1.5 * eye - 0.5 * z @ y
        y, z = y @ t, t @ z
    return y


class MatrixRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cov, eps):
        trace = cov.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None] + eps
        unit = cov / trace  # <-- origin
        ctx.save_for_backward(unit, trace)
        return newton_schulz(unit) * trace.sqrt()

    @staticmethod
    def backward(ctx, g):
        unit, trace = ctx.saved_tensors
        with torch.enable_grad():
            a, t = unit.detach().requires_grad_(), trace.detach().requires_grad_()
            y = newton_schulz(a) * t.sqrt()
            ga, gt = torch.autograd.grad(y, (a, t), g)
        gt = gt - (ga * unit).sum((1, 2), keepdim=True) / trace
        return ga / trace + gt * torch.eye(unit.shape[-1]), None


class Root(nn.Module):
    eps = 0.0

    def forward(s, h):
        h = h.flatten(2)
        h = h - h.mean(-1, keepdim=True)
        return MatrixRoot.apply(h @ h.transpose(1, 2) / h.shape[-1], s.eps)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.root, s.fc = nn.Conv2d(3, 6, 3, bias=False), Root(), nn.Linear(36, 4)

    def forward(s, x):
        return s.fc(s.root(torch.relu(s.conv(x))).flatten(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    m.root.eps = 1e-4 if fix == "eps" else 0.0
    g = torch.Generator().manual_seed(33)
    data = [dict(x=torch.rand(6, 3, 8, 8, generator=g), c=torch.randint(0, 4, (6,), generator=g)) for _ in range(9)]
    data[5]["x"][2] = 0.0
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"]), b["c"]), data, B.adam(m, 1e-3))
