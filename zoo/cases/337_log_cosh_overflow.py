"""The log-cosh loss written as log(cosh(r)): a residual beyond 89 overflows cosh, though the loss itself is about r."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="337_log_cosh_overflow", source="common report: log-cosh loss of unscaled targets",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="cosh", module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1, 3], fixes_that_work=["stable", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"stable", "clamp"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 1), B.xy(9)

    def loss_fn(m, b):
        r = m(b["x"]) - b["y"]
        if fix == "stable":
            return (r + torch.nn.functional.softplus(-2 * r) - 0.6931).mean()
        if fix == "clamp":
            r = r.clamp(-50, 50)
        return torch.log(torch.cosh(r)).mean()  # <-- origin

    data[4]["y"][1], data[4]["y"][3] = 140.0, -95.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
