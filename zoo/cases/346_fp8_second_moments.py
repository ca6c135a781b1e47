"""An optimizer that stores its second moments in e4m3 without a scale: the squares of ordinary gradients (1e-4 and less)
are below its smallest number, 0.002, and round to zero. m / (0 + 0) is infinite or NaN in the first update."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="346_fp8_second_moments", source="https://arxiv.org/abs/2310.18313 (FP8-LM: second moments need a scale)", symptom="nan_param", phase="optimizer", cause="zero_division", cause_also=["fp8_underflow", "optimizer_eps_underflow"],
             op="div", op_also=["addcdiv", "addcdiv_", "div_"], module=None, module_also=["fc1", "fc2"], line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["fp32_state", "eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"fp32_state", "eps"}


class SmallAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, fix):
        super().__init__(params, dict(lr=lr))
        self.fix = fix

    @torch.no_grad()
    def step(self, closure=None):
        def small(x):
            return x if self.fix == "fp32_state" else x.to(torch.float8_e4m3fn).view(torch.uint8)

        def large(x):
            return x if self.fix == "fp32_state" else x.view(torch.float8_e4m3fn).float()

        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), small(torch.zeros_like(p))
                state["m"].lerp_(p.grad, 0.1)
                state["v"] = small(0.99 * large(state["v"]) + 0.01 * p.grad.square())
                root = large(state["v"]).sqrt()
                if self.fix == "eps":
                    root = root + 1e-8
                update = state["m"] / root  # <-- origin
                p.sub_(group["lr"] * update)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 1), B.xy(8)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, SmallAdam(m.parameters(), 1e-3, fix))
