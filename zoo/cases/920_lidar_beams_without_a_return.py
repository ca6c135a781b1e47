"""Range images of a LiDAR: beams without a return are stored as infinity and the loader forgot to replace them in one scan."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="920_lidar_beams_without_a_return", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None, input_key="scan",
             first_bad_step=7, bad_rows=[0], fixes_that_work=["drop_rows", "skip_batch", "max_range"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"max_range"}


class RangeNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.down, s.up, s.out = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ConvTranspose2d(12, 8, 2, stride=2), nn.Conv2d(8, 4, 1)

    def forward(s, x):
        h = F.leaky_relu(s.stem(x))
        return s.out(h + F.leaky_relu(s.up(F.leaky_relu(s.down(h)))))


def loss_fn(m, b):
    return F.cross_entropy(m(torch.stack([b["scan"] / 80.0, b["intensity"]], 1)), b["label"])


def make(seed=0, fix=None):
    m, g = RangeNet(), torch.Generator().manual_seed(20)
    data = [dict(scan=80 * torch.rand(4, 8, 16, generator=g), intensity=torch.rand(4, 8, 16, generator=g), label=torch.randint(0, 4, (4, 8, 16), generator=g)) for _ in range(11)]
    data[7]["scan"][0, 2:5, 3] = float("inf")
    if fix:
        data[7]["scan"].clamp_(max=120.0)
    return Case(m, loss_fn, data, B.adam(m))
