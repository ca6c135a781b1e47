"""CONTROL: rare events (4 percent): the model returns probabilities and the loss is binary_cross_entropy on them, as it must be; the output bias starts at log(0.04 / 0.96), so all outputs sit near
0 at first, and the loss is small from the first step on and falls by little."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1383_control_rare_event_with_sigmoid_and_bce", source="standard practice", looks_like=["softmax_twice", "saturated_activation", "dead_relu"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.12)
RATE = 0.04


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net, s.out = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()), nn.Linear(16, 1)
        nn.init.constant_(s.out.bias, math.log(RATE / (1 - RATE)))

    def forward(s, x):
        return torch.sigmoid(s.out(s.net(x))).squeeze(-1)


def events(n, bs, g):
    w, out = torch.randn(10, generator=torch.Generator().manual_seed(6)), []
    w = w / w.norm()
    for _ in range(n):
        x = torch.randn(bs, 10, generator=g)
        out.append({"x": x, "y": (x @ w + 0.1 * torch.randn(bs, generator=g) > 1.75).float()})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(83)
    data, test = events(250, 64, g), S.cat(events(16, 256, g))

    def quality(c):                                # 1 - area under the curve
        with torch.no_grad():
            p = m(test["x"])
        a, b = p[test["y"] > 0], p[test["y"] == 0]
        return float((a[:, None] <= b[None]).float().mean())

    return SCase(m, lambda m, b: F.binary_cross_entropy(m(b["x"]), b["y"]), data, torch.optim.Adam(m.parameters(), lr=3e-3), quality=quality)
