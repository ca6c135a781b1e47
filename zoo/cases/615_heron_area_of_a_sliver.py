"""Mesh fitting with an area prior by Heron's formula, vmapped over the batch. The faces of one scanned mesh are slivers (three points on a
line): s - c is rounding noise, the product falls below zero, its root is NaN."""
import torch, torch.nn as nn
from torch.func import vmap
from protocol import Case
TRUTH = dict(id="615_heron_area_of_a_sliver", source="https://people.eecs.berkeley.edu/~wkahan/Triangle.pdf (Heron's formula loses everything on needles)",
             symptom="nan_loss", phase="loss", cause="cancellation", op="sqrt", module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[2],
             fixes_that_work=["clamp", "cross", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "cross"}


class Pose(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, code, verts):
        p = 0.1 * self.net(code)
        return verts * (1 + p[:, None, :1]) + p[:, None, 1:]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Pose(), torch.Generator().manual_seed(27)
    faces = torch.arange(36).view(12, 3)

    def areas(verts):
        p, q, r = verts[faces].unbind(1)
        if fix == "cross":
            return 0.5 * (torch.linalg.cross(q - p, r - p).pow(2).sum(-1) + 1e-12).sqrt()
        a, b, c = (q - r).norm(dim=-1), (r - p).norm(dim=-1), (p - q).norm(dim=-1)
        s = (a + b + c) / 2
        sq = s * (s - a) * (s - b) * (s - c)
        if fix == "clamp":
            sq = sq.clamp(min=1e-9)
        return sq.sqrt()  # <-- origin

    def loss_fn(m, batch):
        moved = m(batch["code"], batch["verts"])
        return (moved - batch["target"]).abs().mean() + 0.1 * (vmap(areas)(moved).mean(-1) - batch["area"]).pow(2).mean()

    data = []
    for _ in range(9):
        v = torch.randn(4, 36, 3, generator=g)
        data.append(dict(code=torch.randn(4, 6, generator=g), verts=v, target=1.1 * v + 0.05, area=torch.ones(4)))
    along, t = torch.randn(12, 1, 3, generator=g), torch.rand(12, 3, 1, generator=g)
    data[5]["verts"][2] = (along * t + torch.randn(12, 1, 3, generator=g)).view(36, 3)
    data[5]["target"][2] = 1.1 * data[5]["verts"][2] + 0.05
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=2e-3))
