"""Siamese network with sqrt(sum((a - b)^2)): one pair of the batch is the same picture twice, the distance is 0 and its
derivative is infinite. The loss is finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="216_siamese_distance_of_duplicates", source="https://github.com/adambielski/siamese-triplet/issues/18",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul", "pow"], module="distance", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2, 3], fixes_that_work=["eps", "vector_norm", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "vector_norm"}


class Distance(nn.Module):
    fix = None

    def forward(s, a, b):
        if s.fix == "vector_norm":
            return torch.linalg.vector_norm(a - b, dim=-1)
        d2 = (a - b).pow(2).sum(-1)
        return torch.sqrt(d2 + 1e-9 if s.fix == "eps" else d2)  # <-- origin


class Siamese(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder = nn.Sequential(nn.Conv2d(1, 6, 3), nn.PReLU(), nn.Flatten(), nn.Linear(6 * 16, 8))
        s.distance = Distance()

    def forward(s, a, b):
        return s.distance(s.encoder(a), s.encoder(b))


def loss_fn(m, b):
    d = m(b["left"], b["right"])
    return (b["same"] * d.pow(2) + (1 - b["same"]) * F.relu(1.0 - d).pow(2)).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Siamese(), torch.Generator().manual_seed(6)
    m.distance.fix = fix
    data = [dict(left=torch.randn(6, 1, 6, 6, generator=g), right=torch.randn(6, 1, 6, 6, generator=g), same=(torch.rand(6, generator=g) > 0.5).float()) for _ in range(9)]
    for r in (2, 3):
        data[4]["right"][r] = data[4]["left"][r]
        data[4]["same"][r] = r - 2.0              # one of the duplicates is even labelled "different"
    return Case(m, loss_fn, data, torch.optim.Adagrad(m.parameters(), lr=1e-2))
