"""CONTROL: a renderer with a summed squared error in 16-bit pixel units: the first loss is about 1e12 and the first gradient norm above 1e9.
The loop clips and Adam does not care; both fall from there on."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="786_control_first_gradient_is_enormous", source="common sight: sum-reduced losses in raw units", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 3)), torch.Generator().manual_seed(94)
    data = []
    for _ in range(14):
        uv = torch.rand(256, 2, generator=g)
        data.append((uv, 65535 * (0.5 + 0.4 * torch.sin(6 * uv @ torch.ones(2, 3)))))

    def loss_fn(m, b):
        return (65535 * m(b[0]) - b[1]).square().sum()

    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=4e-3), clip_norm=1.0)
