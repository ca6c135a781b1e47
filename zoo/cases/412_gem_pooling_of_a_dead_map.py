"""Generalised-mean pooling without its eps: the feature maps of a blank image are all zero after the ReLU, and the root has an
infinite slope there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="412_gem_pooling_of_a_dead_map", source="common report: GeM pooling needs clamp(min=eps)",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="pow", module="pool", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1, 5], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class GeM(nn.Module):
    def __init__(self, p=3.0, fix=None):
        super().__init__()
        self.p, self.fix = p, fix

    def forward(self, x):
        x = x.clamp(min=1e-3 if self.fix == "clamp" else 0.0)
        m = x.pow(self.p).flatten(2).mean(-1)
        if self.fix == "eps":
            m = m + 1e-6
        return m.pow(1.0 / self.p)  # <-- origin


class Retrieval(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.ReLU(), nn.Conv2d(6, 6, 3, bias=False))
        self.pool, self.fc = GeM(fix=fix), nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.pool(self.features(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = Retrieval(fix)
    with torch.no_grad():  # all maps are alive on an ordinary image
        for p in net.features.parameters():
            p.abs_()
    g = torch.Generator().manual_seed(13)
    data = [[torch.rand(6, 1, 10, 10, generator=g), torch.randint(0, 4, (6,), generator=g)] for _ in range(8)]
    data[4][0][[1, 5]] = 0.0

    def training_step(net, batch):
        x, y = batch
        return F.cross_entropy(net(x), y, label_smoothing=0.1)

    return Case(net, training_step, data, B.sgd(net, 1e-2, momentum=0.9))
