"""CONTROL: a running minimum starts at +inf in a buffer and in a scatter; it never reaches the loss."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="480_control_nearest_point_starts_at_infinity", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)


class Nearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = B.mlp(3, 16, 3)
        self.register_buffer("best", torch.tensor(float("inf")))

    def forward(self, src, dst, cluster):
        moved = self.net(src) + src
        d = torch.cdist(moved, dst).flatten(1)
        floor = torch.full((src.shape[0], 4), float("inf")).scatter_reduce(1, cluster, d, "amin")
        self.best = torch.minimum(self.best, floor.detach().min())
        return torch.where(torch.isinf(floor), torch.zeros_like(floor), floor).sum(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Nearest(), torch.Generator().manual_seed(3), []
    for _ in range(10):
        data.append((torch.randn(4, 5, 3, generator=g), torch.randn(4, 5, 3, generator=g), torch.randint(0, 3, (4, 25), generator=g)))
    return Case(m, lambda m, b: m(*b).mean(), data, B.adam(m, 1e-3))
