"""Attention written with einsum under fp16 autocast, scaled after the product: a row of large features overflows the scores."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="314_einsum_attention_fp16", source="common report: scores overflow before they are scaled",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="bmm", op_also=["einsum", "baddbmm", "matmul"], module="attend", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[3], fixes_that_work=["fp32", "bf16", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class Attend(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.qkv = nn.Linear(d, 3 * d, bias=False)

    def forward(s, x):
        q, k, v = s.qkv(x).unflatten(-1, (3, 2, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)  # <-- origin
        weights = torch.softmax(scores / q.shape[-1] ** 0.5, -1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()).flatten(2)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.attend, s.norm, s.head = Attend(16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(s, x):
        return s.head(s.norm(s.attend(x)).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(6)
    data = [dict(x=torch.randn(5, 6, 16, generator=g), y=torch.randint(0, 3, (5,), generator=g)) for _ in range(8)]
    data[4]["x"][3] *= 1000.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3), autocast=torch.float16)
