"""Differentiating the eigenvectors of a covariance: a perfectly round point cloud has equal eigenvalues, 1/(l_i - l_j) is
infinite in the backward pass."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1333_eigh_of_a_sphere", source="commonly reported; no link was looked up",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="linalg_eigh", op_also=["div", "mul", "sub"], module="frame", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[0], fixes_that_work=["jitter", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"jitter"}


class Frame(nn.Module):
    jitter = 0.0

    def forward(s, cov):
        cov = cov + s.jitter * torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        _, axes = torch.linalg.eigh(cov)  # <-- origin
        return axes


class Cloud(nn.Module):
    def __init__(s):
        super().__init__()
        s.weigh, s.frame, s.out = nn.Linear(1, 1), Frame(), nn.Linear(9, 1)

    def forward(s, cov, size):
        scale = F.softplus(s.weigh(size))[:, :, None]
        return s.out(s.frame(cov * scale).flatten(1).abs())


def loss_fn(m, b):
    return F.mse_loss(m(b["cov"], b["size"]), b["y"])


def make(seed=0, fix=None):
    m, g = Cloud(), torch.Generator().manual_seed(27)
    m.frame.jitter = 1e-2 if fix else 0.0
    data = []
    for _ in range(8):
        p = torch.randn(5, 12, 3, generator=g) * torch.tensor([1.0, 2.0, 4.0])
        data.append(dict(cov=p.transpose(1, 2) @ p / 12, size=torch.rand(5, 1, generator=g), y=torch.randn(5, 1, generator=g)))
    data[7]["cov"][0] = torch.eye(3)
    return Case(m, loss_fn, data, B.adam(m))
