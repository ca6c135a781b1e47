"""Hardware-like fault: the exponent bits of one gradient element stick at 1 once; the same backward run again is clean."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1355_bitflip_in_gradient", source="https://arxiv.org/abs/2604.00726",
             symptom="nan_grad", phase="backward", cause="transient_fault", op=None, module="proj", line_marker=None,
             tensor="proj.weight", tensor_kind="grad", first_bad_step=6, bad_rows=None,
             fixes_that_work=["recompute_step", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"recompute_step"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.proj, s.out = nn.Conv2d(2, 8, 3), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(s, x):
        return s.out(F.silu(s.proj(F.silu(s.conv(x)).mean([2, 3]))))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(24)
    data = [dict(x=torch.randn(6, 2, 7, 7, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(10)]

    def strike(case, i):
        if i == 6 and not fix:
            case.model.proj.weight.grad.view(torch.int32)[11, 3] |= 0x7F800000

    return Case(m, loss_fn, data, B.adam(m), after_backward=strike)
