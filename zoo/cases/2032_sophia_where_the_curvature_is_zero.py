"""A Sophia-like optimizer divides momentum by a curvature estimate without a floor; a row of the embedding that was never read has 0 / 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2032_sophia_where_the_curvature_is_zero", source="written for the unseen set, no public report",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", module="embed", module_also=["pos"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "clamp", "optimizer_eps"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class Sophia(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, fix=None):
        super().__init__(params, dict(lr=lr))
        s.fix = fix

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                if not st:
                    st["m"], st["h"] = torch.zeros_like(p), torch.zeros_like(p)
                st["m"].lerp_(p.grad, 0.1)
                st["h"].lerp_(p.grad * p.grad, 0.05)
                h = st["h"].sqrt()
                if s.fix == "eps":
                    h = h + 1e-8
                if s.fix == "clamp":
                    h = h.clamp(min=1e-8)
                p.sub_((st["m"] / h).clamp_(-1, 1), alpha=group["lr"])  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(V=32, T=12)
    return Case(m, B.lm_loss, B.lm_data(7), Sophia(m.parameters(), 1e-3, fix))
