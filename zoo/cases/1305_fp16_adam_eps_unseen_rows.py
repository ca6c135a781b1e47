"""Half-precision weights and Adam with eps=1e-8: eps is 0 in fp16, so embedding rows that were not in the batch (gradient
exactly 0) are updated by 0/0. Loss and gradients of the step are finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1305_fp16_adam_eps_unseen_rows", source="https://github.com/pytorch/pytorch/issues/147437",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv", op_also=["div"], module="items",
             module_also=[None], line_marker=None, tensor="items.weight", tensor_kind="param", first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "fp32", "bf16"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "fp32", "bf16"}


class Recommender(nn.Module):
    def __init__(s):
        super().__init__()
        s.items, s.query = nn.Embedding(50, 8), nn.Linear(8, 8, bias=False)

    def forward(s, x, i):
        return (s.query(x) * s.items(i)).sum(-1)


def make(seed=0, fix=None):
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m, g = Recommender().to(dt), torch.Generator().manual_seed(8)

    def loss_fn(m, b):
        return F.softplus(-b["y"] * m(b["x"].to(dt), b["item"]).float()).sum()

    data = [dict(x=torch.randn(8, 8, generator=g), item=torch.randint(0, 50, (8,), generator=g), y=torch.randint(0, 2, (8,), generator=g) * 2.0 - 1) for _ in range(9)]
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8))
