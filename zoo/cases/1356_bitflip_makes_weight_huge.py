"""Hardware-like fault in a conv weight: the top exponent bit flips and 0.02 becomes 7e36. The loss stays finite and
explodes."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1356_bitflip_makes_weight_huge", source="https://arxiv.org/abs/2604.00726",
             symptom="spike", phase="state", cause="transient_fault", op=None, module="features.mid", line_marker=None,
             tensor="features.mid.weight", finite_but_huge=True, first_bad_step=6, bad_rows=None,
             fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"restore_weight"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.features = nn.ModuleDict(dict(stem=nn.Conv2d(1, 6, 3, padding=1), mid=nn.Conv2d(6, 6, 3, padding=1)))
        s.fc = nn.Linear(6, 3)

    def forward(s, x):
        return s.fc(F.softplus(s.features["mid"](F.softplus(s.features["stem"](x)))).amax([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(26)
    data = [dict(x=torch.randn(6, 1, 6, 6, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(11)]
    with torch.no_grad():
        m.features["mid"].weight[1, 2, 1, 1] = 0.02

    def flip(case, i):
        if i == 6 and not fix:
            w = case.model.features["mid"].weight.data.view(torch.int32)
            w[1, 2, 1, 1] ^= 1 << 30

    def healthy(log):
        return all(r.loss_ok and r.grad_ok for r in log) and max(r.loss for r in log[6:]) < 3 * max(r.loss for r in log[:6])

    return Case(m, loss_fn, data, B.adam(m, 5e-4), before_step=flip, healthy=healthy)
