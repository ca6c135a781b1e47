"""Rare positives: the bias of the output layer is to start at -log((1 - p) / p). The loop sets every parameter whose name ends in 'bias': all ReLU units of both convolutions are off for every input, only the output bias learns."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="923_prior_bias_on_every_layer", source="constructed", symptom="silent", phase="forward", cause="dead_relu", op="relu", module="act1", module_also=["act2"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["conv1.bias", "conv2.bias"],
             static_visible=dict(source="yes: endswith('bias') without 'cls'", objects="yes: every unit of act1 is 0 on the first batches"),
             named=dict(kind="never_moves", names=["conv1.weight", "conv2.weight"]),
             quality_limit=0.2, margin=1.8, fixes_that_work=["output_only"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"output_only"}
PRIOR = 0.01


class Detector(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.act1 = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()
        s.conv2, s.act2 = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        s.cls = nn.Linear(8, 1)

    def forward(s, x):
        return s.cls(s.act2(s.conv2(s.act1(s.conv1(x)))).amax((2, 3)))[:, 0]


def scenes(n, seed, bs=32):
    """a bright 2 x 2 spot somewhere in one picture of ten"""
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        x, y = 0.4 * torch.randn(bs, 1, 8, 8, generator=g), (torch.rand(bs, generator=g) < 0.1).float()
        for k in y.nonzero()[:, 0].tolist():
            a, b = torch.randint(0, 7, (2,), generator=g).tolist()
            x[k, 0, a:a + 2, b:b + 2] += 1.5
        out.append({"x": x, "y": y})
    return out


def loss_fn(m, b):
    return F.binary_cross_entropy_with_logits(m(b["x"]), b["y"])


def signal(case, i, r):
    with torch.no_grad():
        return all(float(torch.relu(case.model.conv1(b["x"])).max()) == 0 for b in case.batches[:3])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Detector(), S.cat(scenes(16, 1))
    for n, p in m.named_parameters():
        if n.endswith("cls.bias" if fix else "bias"):  # <-- origin
            nn.init.constant_(p, -math.log((1 - PRIOR) / PRIOR))
    return SCase(m, loss_fn, scenes(150, 0), torch.optim.NAdam(m.parameters(), lr=1e-2), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
