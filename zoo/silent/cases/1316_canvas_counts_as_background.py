"""Segmentation of images of different sizes: the collate function puts them into a canvas of 24 x 24. The labels are filled up with 0, which is the class 'background', instead of 255; nine
tenths of the pixels of the loss are canvas."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1316_canvas_counts_as_background", source="constructed (fill value of the padded segmentation map)", symptom="silent", phase="loss",
             cause="padding_in_loss", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: new_zeros for the label canvas with ignore_index 255", objects="no: in the first batch yes (labels outside of the images are 0)"),
             quality_limit=0.45, margin=1.3, fixes_that_work=["fill_with_255"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"fill_with_255"}
CANVAS = 24


class Seg(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(s, x):
        return s.net(x)


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"], ignore_index=255)


def image(g):
    h, w = (int(v) for v in torch.randint(6, 10, (2,), generator=g))
    x = F.avg_pool2d(F.pad(torch.randn(1, 1, h, w, generator=g), (1, 1, 1, 1), mode="replicate"), 3, 1)[0] * 3
    return x, (x[0] > -0.4).long() + (x[0] > 0.6).long()


def collate(images, fill):
    x, y = torch.zeros(len(images), 1, CANVAS, CANVAS), torch.full((len(images), CANVAS, CANVAS), fill)
    for k, (a, t) in enumerate(images):
        x[k, :, :a.shape[1], :a.shape[2]], y[k, :t.shape[0], :t.shape[1]] = a, t
    return {"x": x, "y": y, "size": torch.tensor([t.shape for _, t in images])}


def signal(case, i, r):
    """pixels outside of the images have a label that counts"""
    b = case.batches[max(i, 0)]
    return i >= 0 and any(bool((b["y"][k, h:] != 255).any()) for k, (h, w) in enumerate(b["size"].tolist()))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Seg(), torch.Generator().manual_seed(36)
    fill = 255 if fix else 0  # <-- origin
    data = [collate([image(g) for _ in range(6)], fill) for _ in range(60)]
    test = collate([image(g) for _ in range(64)], 255)
    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=5e-3), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
