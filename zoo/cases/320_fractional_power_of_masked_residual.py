"""A robust loss |r|^0.5 of masked residuals: the residual of an unlabelled row is exactly 0, where the power has no slope."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="320_fractional_power_of_masked_residual", source="common report: |x|^p losses with p < 1",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="pow", op_also=["abs", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[1, 4], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 2), B.xy(9, k=2)

    def loss_fn(m, b):
        r = ((m(b["x"]) - b["y"]) * b["known"][:, None]).abs()
        if fix == "eps":
            r = r + 1e-6
        return r.pow(0.5).mean()  # <-- origin

    for b in data:
        b["known"] = torch.ones(6)
    data[5]["known"][[1, 4]] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
