"""RMSprop on half-precision weights: a dead ReLU has gradient 0 and square average 0, and eps = 1e-8 rounds to zero, so the
very first update of that unit is 0/0. Loss and gradients are finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="204_rmsprop_eps_dead_unit_fp16", source="https://github.com/pytorch/pytorch/issues/8860",
             symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow", op="addcdiv", op_also=["div", "addcdiv_", "sqrt", "add"], module="fc1", line_marker=None,
             tensor="fc1.weight", first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "fp32", "bf16"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32", "bf16"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m = B.mlp(8, 16, 1, nn.ReLU)
    with torch.no_grad():
        m.fc1.bias[6] = -30.0                     # a unit that never fires
    m = m.to(dt)

    def loss_fn(m, b):
        return F.mse_loss(m(b["x"].to(dt)).float(), b["y"])

    return Case(m, loss_fn, B.xy(8), torch.optim.RMSprop(m.parameters(), lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8))
