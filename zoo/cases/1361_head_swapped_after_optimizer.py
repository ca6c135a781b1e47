"""Fine-tuning: the optimizer was built before the head was exchanged for one with the right number of classes; the new head
gets gradients but is in no parameter group."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1361_head_swapped_after_optimizer", source="commonly reported; no link was looked up",
             symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None, module="head", line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["rebuild_optimizer"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"rebuild_optimizer"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.body, s.head = nn.Conv1d(2, 8, 3), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 100)

    def forward(s, x):
        return s.head(s.body(F.relu(s.stem(x)).transpose(1, 2))[0][:, -1])


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(35)
    opt = B.adam(m)
    m.head = nn.Linear(16, 3)
    if fix:
        opt = B.adam(m)
    start = m.head.weight.detach().clone()
    data = [dict(x=torch.randn(6, 2, 10, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(9)]
    return Case(m, loss_fn, data, opt, healthy=lambda log: all(r.loss_ok for r in log) and not torch.equal(start, m.head.weight.detach()))
