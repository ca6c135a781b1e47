"""CONTROL: a mixture of experts with hard top-1 routing scaled by the gate: in many steps an expert receives no token and no gradient."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="490_control_experts_on_holiday", source="standard practice (Switch)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Switch(nn.Module):
    def __init__(self, d=8, n=4):
        super().__init__()
        self.router, self.experts = nn.Linear(d, n), nn.ModuleList(B.mlp(d, 16, d) for _ in range(n))

    def forward(self, x):
        p = self.router(x).softmax(-1)
        gate, who = p.max(-1)
        y = torch.zeros_like(x)
        for k, e in enumerate(self.experts):
            idx = (who == k).nonzero().squeeze(-1)
            if len(idx):
                y = y.index_add(0, idx, gate[idx, None] * e(x[idx]))
        load = F.one_hot(who, p.shape[-1]).float().mean(0)
        return x + y, p.shape[-1] * (load * p.mean(0)).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.moe, self.out = Switch(), nn.Linear(8, 1)

    def forward(self, x):
        h, aux = self.moe(x)
        return self.out(h), aux


def loss_fn(m, b):
    y, aux = m(b["x"])
    return F.mse_loss(y, b["y"]) + 0.01 * aux


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net()
    data = B.xy(14)
    for i, b in enumerate(data):
        b["x"] = b["x"] + 1.5 * torch.eye(8)[i % 3]
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
