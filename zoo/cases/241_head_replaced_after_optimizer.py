"""Transfer learning: the classifier is replaced for the new number of classes after the optimizer was built, so the optimizer still
holds the old head and the new one stays at its random start. Its gradients are perfectly healthy."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="241_head_replaced_after_optimizer", source="https://github.com/pytorch/pytorch/issues/14467",
             symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None, module="head", line_marker=None, tensor="head.weight", first_bad_step=0, bad_rows=None,
             fixes_that_work=["rebuild_optimizer", "add_param_group"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"rebuild_optimizer", "add_param_group"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.head = B.mlp(8, 24, 12, nn.ReLU), nn.Linear(12, 10)

    def forward(s, x):
        return s.head(torch.relu(s.body(x)))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["c"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2)
    m.head = nn.Linear(12, 3)
    if fix == "rebuild_optimizer":
        opt = torch.optim.AdamW(m.parameters(), lr=1e-2)
    if fix == "add_param_group":
        opt.add_param_group(dict(params=m.head.parameters()))
    start = m.head.weight.detach().clone()
    data, g = B.xy(10), torch.Generator().manual_seed(4)
    for b in data:
        b["c"] = torch.randint(0, 3, (6,), generator=g)

    def clear(case, i):                           # the loop clears the model's gradients, as most loops do
        case.model.zero_grad()

    return Case(m, loss_fn, data, opt, before_step=clear, healthy=lambda log: not torch.equal(m.head.weight.detach(), start))
