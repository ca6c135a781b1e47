"""CONTROL: a half precision model whose optimizer keeps float32 master copies: eps and moments live in float32, and nothing underflows."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2085_control_half_model_with_float_master_weights", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Master(torch.optim.Optimizer):
    def __init__(s, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                if not st:
                    st.update(w=p.detach().float().clone(), m=torch.zeros_like(p, dtype=torch.float32), v=torch.zeros_like(p, dtype=torch.float32), t=0)
                st["t"] += 1
                g = p.grad.float()
                st["m"].lerp_(g, 0.1)
                st["v"].lerp_(g * g, 0.01)
                mh, vh = st["m"] / (1 - 0.9 ** st["t"]), st["v"] / (1 - 0.99 ** st["t"])
                st["w"].sub_(group["lr"] * mh / (vh.sqrt() + 1e-8))
                p.copy_(st["w"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 32, 1).half()
    data = [dict(x=b["x"].half(), y=b["y"]) for b in B.xy(30, bs=16)]
    for b in data[:10]:
        b["x"][:, 3] = 0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]).float(), b["y"]), data, Master(m.parameters(), 1e-3), healthy=lambda log: log[-1].loss < log[0].loss)
