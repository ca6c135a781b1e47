"""Self-training with two micro-batches to an update. The unlabelled term is the mean over those rows whose pseudo label is sure; in one micro-batch none is."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2112_no_pseudo_label_is_sure_enough", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["clamp", "eps", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "eps"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.head = nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            s.body.weight.copy_(torch.eye(6))
            s.head.weight.copy_(4 * torch.eye(3, 6))

    def forward(s, x):
        return s.head(F.leaky_relu(s.body(x), 0.1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()

    def loss_fn(m, b):
        supervised = F.cross_entropy(m(b["x"]), b["y"])
        with torch.no_grad():
            sure, label = m(b["weak"]).softmax(-1).max(-1)
        keep = (sure > 0.95).float()
        each = F.cross_entropy(m(b["strong"]), label, reduction="none") * keep
        n = keep.sum()
        if fix == "clamp":
            n = n.clamp(min=1)
        if fix == "eps":
            n = n + 1e-6
        return supervised + each.sum() / n  # <-- origin

    g = torch.Generator().manual_seed(27)
    data = []
    for k in range(12):
        y, c = torch.randint(0, 3, (6,), generator=g), torch.randint(0, 3, (8,), generator=g)
        u = 0.02 * torch.randn(8, 6, generator=g) + (0 if k == 6 else 2) * F.one_hot(c, 6)
        data.append(dict(x=2 * F.one_hot(y, 6) + 0.3 * torch.randn(6, 6, generator=g), y=y, weak=u, strong=u + 0.4 * torch.randn(8, 6, generator=g)))
    return Case(m, loss_fn, data, B.adam(m, 1e-3), accumulation=2)
