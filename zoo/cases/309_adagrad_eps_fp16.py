"""Adagrad on a half-precision table: its eps of 1e-10 is zero in fp16, and a row that did not occur in the batch is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="309_adagrad_eps_fp16", source="common report: Adagrad with half-precision embeddings",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv", op_also=["div", "addcdiv_", "sqrt", "add"], module="items", line_marker=None,
             tensor="items.weight", first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "fp32"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32"}


class Factors(nn.Module):
    def __init__(s):
        super().__init__()
        s.items, s.head = nn.Embedding(50, 6), nn.Linear(6, 2)

    def forward(s, ids):
        return s.head(s.items(ids).float())


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"], reduction="sum")


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Factors(), torch.Generator().manual_seed(1)
    if fix != "fp32":
        m.items.half()
    data = [dict(ids=torch.randint(0, 50, (8,), generator=g), y=torch.randint(0, 2, (8,), generator=g)) for _ in range(8)]
    return Case(m, loss_fn, data, torch.optim.Adagrad(m.parameters(), lr=1e-2, eps=1e-3 if fix == "eps" else 1e-10))
