"""Triplet loss with the distance written as sqrt(sum(d^2)): anchor and positive are the same image, the distance is exactly
0 and its derivative 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1327_triplet_same_image_twice", source="commonly reported; no link was looked up",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["div", "mul", "pow"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[2], fixes_that_work=["eps", "vector_norm", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "vector_norm"}


class Siamese(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.fc = nn.Conv2d(1, 6, 3), nn.Linear(6 * 36, 10)

    def forward(s, x):
        return s.fc(torch.tanh(s.conv(x)).flatten(1))


def make(seed=0, fix=None):
    m, g = Siamese(), torch.Generator().manual_seed(10)

    def dist(d):
        if fix == "vector_norm":
            return torch.linalg.vector_norm(d, dim=-1)
        sq = d.pow(2).sum(-1)
        return torch.sqrt(sq + 1e-8 if fix == "eps" else sq)  # <-- origin

    def loss_fn(m, b):
        a, p, n = m(b["anchor"]), m(b["pos"]), m(b["neg"])
        return F.softplus(dist(a - p) - dist(a - n)).mean()

    data = []
    for _ in range(10):
        a = torch.rand(5, 1, 8, 8, generator=g)
        data.append(dict(anchor=a, pos=a + 0.1 * torch.randn(5, 1, 8, 8, generator=g), neg=torch.rand(5, 1, 8, 8, generator=g)))
    data[6]["pos"][2] = data[6]["anchor"][2]
    return Case(m, loss_fn, data, B.adam(m))
