"""A VGG-like network made deeper: fourteen 3 x 3 convolutions with ReLU, no batch norm, no residual, the default initialisation of torch (which is too small for ReLU). Signal and gradient lose
a factor of two and more per layer; the output is the same for every image and stays at the class frequencies."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1321_fourteen_plain_convolutions", source="constructed; He et al., Delving Deep into Rectifiers, sec. 2.2", symptom="silent", phase="backward",
             cause="vanishing_gradient", op=None, module="body.0", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="hint: deep stack without norm or residual", objects="no: after the first backward yes (gradient of body.0 against that of the head)"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["residual", "he_init"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"residual", "he_init"}
DEPTH = 14


class Deep(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.body = nn.ModuleList(nn.Conv2d(8 if k else 1, 8, 3, padding=1) for k in range(DEPTH))  # <-- origin
        s.head, s.skip = nn.Linear(8, 3), fix == "residual"
        if fix == "he_init":
            for c in s.body:
                nn.init.kaiming_normal_(c.weight, nonlinearity="relu")
                nn.init.zeros_(c.bias)

    def forward(s, x):
        for k, c in enumerate(s.body):
            h = torch.relu(c(x))
            x = x + h if k and s.skip else h
        return s.head(x.mean((2, 3)))


def textures(n, bs, g):                            # stripes across, stripes down, chequered
    i, j = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    base = torch.stack([(i % 2), (j % 2), (i + j) % 2]).float() * 2 - 1
    out = []
    for _ in range(n):
        y, s = torch.randint(0, 3, (bs,), generator=g), torch.randint(0, 2, (bs, 1, 1), generator=g) * 2 - 1
        out.append({"x": (base[y] * s + 0.5 * torch.randn(bs, 8, 8, generator=g))[:, None], "y": y})
    return out


def signal(case, i, r):
    """the first layer's gradient is four orders of magnitude below the head's from the start"""
    return bool(r) and i < 5 and r.grads["body.0.weight"] < 1e-4 * r.grads["head.bias"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Deep(fix), torch.Generator().manual_seed(41)
    data, test = textures(300, 16, g), S.cat(textures(8, 32, g))
    return SCase(m, S.ce, data, torch.optim.SGD(m.parameters(), lr=0.03, momentum=0.9), quality=lambda c: S.heldout_err(m, test))
