"""AdaBelief written by hand for half-precision weights: the belief term (g - m)^2 of small gradients underflows, eps = 1e-8 is zero in
fp16, and the very first step divides by zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="903_adabelief_written_out_in_half", source="https://arxiv.org/abs/2010.07468",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="div", op_also=["addcdiv", "mul"], module=None, module_also=["fc1", "fc2"],
             line_marker="# <-- origin", first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "fp32", "fp32_state"],
             fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32", "fp32_state"}


class AdaBelief(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wide=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        s.wide = wide

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.float() if s.wide else p.grad
                st = s.state[p]
                if not st:
                    st["m"], st["v"] = torch.zeros_like(g), torch.zeros_like(g)
                st["m"].lerp_(g, 1 - b1)
                st["v"].mul_(b2).add_((g - st["m"]).square(), alpha=1 - b2)
                den = st["v"].sqrt().add_(group["eps"])
                p.sub_((group["lr"] * (st["m"] / den)).to(p.dtype))  # <-- origin


def loss_fn(m, b):
    return 0.05 * F.smooth_l1_loss(m(b["x"].to(m.fc1.weight.dtype)).float(), b["y"])


def make(seed=0, fix=None):
    m = B.mlp(8, 24, 1, nn.SiLU)
    if fix != "fp32":
        m = m.half()
    opt = AdaBelief(m.parameters(), eps=1e-3 if fix == "eps" else 1e-8, wide=fix == "fp32_state")
    return Case(m, loss_fn, B.xy(9), opt)
