"""fp16 autocast without a scaler, summed loss with importance weights: the loss of the reweighted sample is an ordinary fp32 number,
its gradient no longer fits when it is cast back to the half-precision logits."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="245_fp16_weighted_gradient_overflow", source="common report: importance weights with summed losses under fp16",
             symptom="nan_grad", phase="backward", cause="fp16_overflow", op="to_copy", op_also=["_to_copy", "to", "mul", "mm", "addmm"], module=None, module_also=["", "head"], line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["fp32", "bf16", "scale_down", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"scale_down"}


class Ranker(nn.Module):
    def __init__(s):
        super().__init__()
        s.user, s.item, s.head = nn.Embedding(50, 8), nn.Embedding(50, 8), nn.Linear(16, 4)

    def forward(s, u, i):
        return s.head(torch.tanh(torch.cat([s.user(u), s.item(i)], -1)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Ranker(), torch.Generator().manual_seed(5)

    def loss_fn(m, b):
        logits = m(b["u"], b["i"]).float()  # <-- origin
        w = b["w"] / 1024 if fix == "scale_down" else b["w"]
        return (w * F.cross_entropy(logits, b["y"], reduction="none")).sum()

    data = [dict(u=torch.randint(0, 50, (6,), generator=g), i=torch.randint(0, 50, (6,), generator=g), w=torch.rand(6, generator=g) * 100 + 1, y=torch.randint(0, 4, (6,), generator=g)) for _ in range(10)]
    data[6]["w"][1] = 4e5                         # propensity of 2.5e-6
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16)
