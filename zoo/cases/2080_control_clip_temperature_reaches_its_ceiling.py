"""CONTROL: the learned temperature of a contrastive model runs into its clamp at 100 and stays there, with no gradient any more."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2080_control_clip_temperature_reaches_its_ceiling", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Pair(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.scale = nn.Linear(12, 8), nn.Linear(12, 8), nn.Parameter(torch.tensor(3.6))

    def forward(s, x, y):
        return s.scale.clamp(max=math.log(100)).exp() * F.normalize(s.a(x), dim=-1) @ F.normalize(s.b(y), dim=-1).T


def loss_fn(m, b):
    z = m(b["x"], b["y"])
    return F.cross_entropy(z, torch.arange(len(z)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Pair()
    g = torch.Generator().manual_seed(1)
    data = []
    for _ in range(80):
        x = torch.randn(8, 12, generator=g)
        data.append(dict(x=x, y=x + 0.05 * torch.randn(8, 12, generator=g)))
    with torch.no_grad():
        m.b.load_state_dict(m.a.state_dict())
    return Case(m, loss_fn, data, torch.optim.AdamW([dict(params=[*m.a.parameters(), *m.b.parameters()], lr=1e-3), dict(params=[m.scale], lr=0.2)]))
