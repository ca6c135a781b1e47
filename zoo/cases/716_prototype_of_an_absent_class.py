"""Class prototypes follow the batch by a moving average, after they were used. At step 5 a class is not in the batch: the mean of nothing
is NaN and goes into the buffer. The loss of that step is still fine; every later one is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="716_prototype_of_an_absent_class", source="after https://github.com/hieuvmphan/REMINDER/issues/10 (NaN in prototype)",
             symptom="nan_state", phase="forward", cause="empty_reduction", op="mean", module="bank", line_marker="# <-- origin", first_bad_step=5, bad_rows=None,
             fixes_that_work=["guard"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"guard"}


class Prototypes(nn.Module):
    def __init__(self, k, d, fix):
        super().__init__()
        self.register_buffer("centre", torch.randn(k, d))
        self.fix = fix

    def forward(self, z, label):
        logits = -torch.cdist(z, self.centre.clone()) ** 2
        with torch.no_grad():
            for c in range(len(self.centre)):
                members = z[label == c]
                if self.fix == "guard" and len(members) == 0:
                    continue
                fresh = members.mean(0)  # <-- origin
                self.centre[c].lerp_(fresh, 0.1)
        return logits


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.enc, self.bank = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), Prototypes(3, 4, fix)

    def forward(self, x, label):
        return self.bank(self.enc(x), label)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(86)
    data = []
    for i in range(10):
        y = torch.arange(9) % 3
        if i == 5:
            y[y == 1] = 2
        data.append({"x": torch.randn(9, 8, generator=g) + y[:, None], "y": y})
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"], b["y"]), b["y"]), data, torch.optim.AdamW(m.parameters(), lr=1e-3))
