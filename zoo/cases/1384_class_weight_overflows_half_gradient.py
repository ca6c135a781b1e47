"""fp16 autocast without a scaler and class weights from inverse frequency: the weighted loss of a very rare class is finite
in fp32, its gradient is beyond 65504 when it is cast back to half."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1384_class_weight_overflows_half_gradient", source="commonly reported; no link was looked up",
             symptom="nan_grad", phase="backward", cause="fp16_overflow", op="_to_copy", op_also=["to", "mul", "mm", "addmm"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[2], fixes_that_work=["bf16", "fp32", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.out = nn.Linear(12, 32), nn.Linear(32, 3)

    def forward(s, x):
        return s.out(F.silu(s.enc(x)))


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(51)
    weight = torch.tensor([1.0, 1.3, 2.0e6])

    def loss_fn(m, b):
        lg = m(b["x"]).float()  # <-- origin
        return (F.cross_entropy(lg, b["y"], reduction="none") * weight[b["y"]]).mean()

    data = [dict(x=torch.randn(5, 12, generator=g), y=torch.randint(0, 2, (5,), generator=g)) for _ in range(10)]
    data[6]["y"][2] = 2
    return Case(m, loss_fn, data, B.sgd(m, 1e-3), autocast=torch.float16)
