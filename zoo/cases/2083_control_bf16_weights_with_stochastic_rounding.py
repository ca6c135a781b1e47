"""CONTROL: bf16 weights whose tiny updates survive because the optimizer rounds stochastically: single weights often stand still, on average they move."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2083_control_bf16_weights_with_stochastic_rounding", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class StochasticSGD(torch.optim.Optimizer):
    def __init__(s, params, lr):
        super().__init__(params, dict(lr=lr))
        s.g = torch.Generator().manual_seed(4)

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    x = p.float() - group["lr"] * p.grad.float()
                    bits = x.view(torch.int32) + torch.randint(0, 1 << 16, x.shape, generator=s.g, dtype=torch.int32)
                    p.copy_((bits & -65536).view(torch.float32))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 64, 1).bfloat16()
    data = [dict(x=b["x"].bfloat16(), y=b["y"].bfloat16()) for b in B.xy(40, bs=16)]
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]).float(), data, StochasticSGD(m.parameters(), 5e-3), healthy=lambda log: all(r.update_norm > 0 for r in log))
