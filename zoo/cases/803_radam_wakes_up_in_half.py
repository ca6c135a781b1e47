"""RAdam on a half-precision model: for the first five steps the update is plain momentum, at the sixth the adaptive term switches
on; eps=1e-8 is 0 in fp16 and the second moment of small gradients has underflowed, so the step is m/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="803_radam_wakes_up_in_half", source="written for this set after a common mistake; no single report",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="reciprocal", op_also=["div", "mul", "addcdiv", "add"], module=None, module_also=["fc1", "fc2"], line_marker=None,
             first_bad_step=5, bad_rows=None, fixes_that_work=["eps", "fp32"],
             fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32"}


def loss_fn(m, b):
    return 0.02 * F.mse_loss(m(b["x"].to(m.fc1.weight.dtype)).float(), b["y"])


def make(seed=0, fix=None):
    m = B.mlp(8, 32, 1, nn.GELU)
    if fix != "fp32":
        m = m.half()
    opt = torch.optim.RAdam(m.parameters(), lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8)
    return Case(m, loss_fn, B.xy(11), opt)
