"""CONTROL: sixteen residual layers whose branches start closed (ReZero: a scale of 0 each). At the first step no branch weight has any gradient, only the scales have; then they open one after the
other. Decay on the matrices, none on the scales."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1387_control_deep_residuals_that_start_closed", source="Bachlechner et al., ReZero is All You Need", looks_like=["vanishing_gradient", "frozen_by_mistake", "lora_inactive"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.2)


class Layer(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.a, s.b, s.scale = nn.Linear(d, d), nn.Linear(d, d), nn.Parameter(torch.zeros(()))

    def forward(s, x):
        return x + s.scale * s.b(torch.relu(s.a(x)))


class Deep(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.layers, s.head = nn.Linear(8, 24), nn.ModuleList(Layer(24) for _ in range(16)), nn.Linear(24, 2)

    def forward(s, x):
        x = s.stem(x)
        for l in s.layers:
            x = l(x)
        return s.head(x)


def quadrants(n, bs, g):
    out = []
    for _ in range(n):
        x = torch.randn(bs, 8, generator=g)
        out.append({"x": x, "y": (x[:, 0] * x[:, 1] > 0).long()})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Deep(), torch.Generator().manual_seed(87)
    data, test = quadrants(200, 32, g), S.cat(quadrants(16, 32, g))
    opt = torch.optim.AdamW([{"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.05},
                             {"params": [p for p in m.parameters() if p.dim() <= 1], "weight_decay": 0.0}], lr=5e-3)
    return SCase(m, S.ce, data, opt, quality=lambda c: S.heldout_err(m, test))
