"""Quantisation-aware training by a parametrisation: every filter is divided by its own scale max|w| / 127. At step 5 the pruning schedule
zeroes a filter: scale 0, 0/0 from then on."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils import parametrize
from protocol import Case
TRUTH = dict(id="609_fake_quantised_filter_was_pruned", source="https://github.com/zhutmost/lsq-net/issues/1 (NaN in quantisation-aware training; the pruning is ours)",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="conv2.parametrizations.weight.0", module_also=["conv2.parametrizations.weight", "conv2"], line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["eps", "clamp"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class FakeQuant(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, w):
        scale = w.detach().abs().amax((1, 2, 3), keepdim=True) / 127
        if self.fix == "eps":
            scale = scale + 1e-8
        elif self.fix == "clamp":
            scale = scale.clamp(min=1e-8)
        grid = (w / scale).round()  # <-- origin
        return w + (grid * scale - w).detach()


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 8, 3), nn.Linear(8, 4)
        for layer in (self.conv1, self.conv2):
            parametrize.register_parametrization(layer, "weight", FakeQuant(fix))

    def forward(self, x):
        return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))


def prune(case, i):
    if i == 5:
        w = case.model.conv2.parametrizations.weight.original
        with torch.no_grad():
            w[w.flatten(1).norm(dim=1).argmin()] = 0.0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(2)
    data = [(torch.randn(6, 1, 7, 7, generator=g), torch.randint(0, 4, (6,), generator=g)) for _ in range(11)]
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.AdamW(m.parameters(), lr=1e-3), before_step=prune)
