"""Recommender whose model.half() item table is trained with NAdam: items not in the batch have 0 moments, 0/(0+eps) with eps 1e-8 = 0."""
import torch
import torch.nn as nn
from protocol import Case
TRUTH = {"id": "502_nadam_on_half_item_table", "source": "written for this set, after a kind of report often seen: nadam on half item table",
         "symptom": "nan_param", "phase": "optimizer", "cause": "optimizer_eps_underflow", "op": None, "op_also": ["div", "addcdiv"], "module": None,
         "module_also": ["items", "users"], "line_marker": None, "first_bad_step": 0, "bad_rows": None, "fixes_that_work": ["eps", "fp32"],
         "fixes_that_do_not": ["clip", "skip_batch", "zero_nan_grads", "lr_down"]}
FIXES = {"eps", "fp32"}


class MF(nn.Module):
    def __init__(self, n_users=20, n_items=60, k=8):
        super().__init__()
        self.users = nn.Embedding(n_users, k)
        self.items = nn.Embedding(n_items, k)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1)


def bpr(model, b):
    u, pos, neg = b["user"], b["pos"], b["neg"]
    margin = model(u, pos) - model(u, neg)
    return nn.functional.softplus(-margin.float()).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = MF()
    if fix != "fp32":
        model = model.half()
    data = [{"user": torch.randint(20, (16,)), "pos": torch.randint(30, (16,)), "neg": torch.randint(30, 60, (16,))} for _ in range(8)]
    opt = torch.optim.NAdam(model.parameters(), lr=2e-3, eps=1e-4 if fix == "eps" else 1e-8)
    return Case(model, bpr, data, opt)
