"""Detection with one dict of targets for every image, as torchvision wants them. The polygon of a crowd region was empty and one corner of its box is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2101_corner_of_a_crowd_box_is_nan", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None,
             first_bad_step=6, bad_rows=[2], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


class Detector(nn.Module):
    def __init__(s, queries=4, classes=3):
        super().__init__()
        s.q = queries
        s.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        s.box, s.cls = nn.Linear(8 * 16, queries * 4), nn.Linear(8 * 16, queries * (classes + 1))

    def forward(s, images):
        h = torch.relu(s.stem(images)).flatten(1)
        return dict(boxes=s.box(h).view(-1, s.q, 4).sigmoid(), logits=s.cls(h).view(len(h), s.q, -1))


def criterion(out, targets):
    box, cls = [], []
    for boxes, logits, t in zip(out["boxes"], out["logits"], targets):
        n = len(t["labels"])
        want = torch.full((len(logits),), 3)
        want[:n] = t["labels"]
        cls.append(F.cross_entropy(logits, want))
        box.append(F.l1_loss(boxes[:n], t["boxes"]))
    return dict(loss_box=torch.stack(box).mean(), loss_cls=torch.stack(cls).mean())


def loss_fn(m, b):
    losses = criterion(m(b["images"]), b["targets"])
    return sum(losses.values())


def select(b, rows):
    return dict(images=b["images"][rows], targets=[b["targets"][r] for r in rows])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Detector()
    g = torch.Generator().manual_seed(21)
    data = []
    for k in range(9):
        targets = []
        for _ in range(5):
            n = int(torch.randint(1, 5, (1,), generator=g))
            a = torch.rand(n, 4, generator=g)
            targets.append(dict(boxes=torch.cat([torch.minimum(a[:, :2], a[:, 2:]), torch.maximum(a[:, :2], a[:, 2:])], 1), labels=torch.randint(0, 3, (n,), generator=g)))
        data.append(dict(images=torch.randn(5, 3, 8, 8, generator=g), targets=targets))
    data[6]["targets"][2]["boxes"][-1, 1] = float("nan")
    return Case(m, loss_fn, data, B.adam(m, 2e-3), select_rows=select)
