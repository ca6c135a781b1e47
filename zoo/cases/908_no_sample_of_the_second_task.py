"""Two tasks share a batch; the loss of the second is the mean over its own samples. One batch happens to hold none of them: the mean
over nothing is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="908_no_sample_of_the_second_task", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="binary_cross_entropy_with_logits", op_also=["mean", "div"], module=None, line_marker="# <-- origin",
             first_bad_step=9, bad_rows=None, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"guard"}


class TwoTask(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk, s.price, s.fraud = B.mlp(8, 32, 16, nn.GELU), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(s, x):
        h = F.gelu(s.trunk(x))
        return s.price(h), s.fraud(h).squeeze(-1)


def make(seed=0, fix=None):
    m = TwoTask()

    def loss_fn(m, b):
        price, fraud = m(b["x"])
        own = b["task"] == 1
        loss = F.l1_loss(price, b["y"])
        if fix == "guard" and not own.any():
            return loss
        return loss + 0.5 * F.binary_cross_entropy_with_logits(fraud[own], b["f"][own])  # <-- origin

    data, g = B.xy(13), torch.Generator().manual_seed(8)
    for b in data:
        b["task"] = torch.randint(0, 2, (6,), generator=g)
        b["task"][int(torch.randint(0, 6, (1,), generator=g))] = 1
        b["f"] = (torch.rand(6, generator=g) > 0.5).float()
    data[9]["task"][:] = 0
    return Case(m, loss_fn, data, B.adam(m))
