"""A plain ten-layer ReLU network initialised 'like GPT' with std 0.02 and zero biases. Without residual paths every layer shrinks signal and gradient about
tenfold: nothing but the bias of the head receives a gradient worth speaking of."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1221_small_normal_init_without_residuals", source="constructed", symptom="silent", phase="backward",
             cause="vanishing_gradient", op=None, module="stem", module_also=["body.0", "body.1", "body.2"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="hint: normal_(std=0.02) in a deep plain stack", objects="hint: singular values of all layers far below 1"),
             quality_limit=0.9, margin=1.5, fixes_that_work=["kaiming", "residual"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"kaiming", "residual"}


class Deep(nn.Module):
    def __init__(s, residual, n=10, h=32):
        super().__init__()
        s.residual = residual
        s.stem, s.body, s.head = nn.Linear(12, h), nn.Sequential(*(nn.Sequential(nn.Linear(h, h), nn.ReLU()) for _ in range(n))), nn.Linear(h, 4)

    def forward(s, x):
        x = s.stem(x)
        for l in s.body:
            x = x + l(x) if s.residual else l(x)
        return s.head(x)


def signal(case, i, r):
    """gradient of the first layer five orders of magnitude below the largest one"""
    return bool(r) and bool(r.grads) and r.grads["stem.weight"] < 1e-5 * max(v for v in r.grads.values() if v)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Deep(fix == "residual"), S.cat(S.classes(16, seed=99))
    for l in m.modules():
        if isinstance(l, nn.Linear):
            if fix == "kaiming":
                nn.init.kaiming_normal_(l.weight, nonlinearity="relu")
            else:
                nn.init.normal_(l.weight, std=0.02)  # <-- origin
            nn.init.zeros_(l.bias)
    return SCase(m, S.ce, S.classes(80), torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9), quality=lambda c: S.heldout_ce(m, test))
