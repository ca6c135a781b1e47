"""An inverse square root schedule on numpy numbers, lr = peak / sqrt(step), begun after a constant phase and counted from the step at which
it begins: the first division is by sqrt(0) and numpy gives inf instead of an exception. The weights are written with an infinite rate."""
import warnings
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="711_inverse_root_schedule_counts_from_zero", source="common report: inverse sqrt / Noam schedule with step 0",
             symptom="nan_param", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None, first_bad_step=4, bad_rows=None,
             fixes_that_work=["right_rate"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"right_rate"}


def rate(i, fix):
    if i < 4:
        return 3e-3
    step = np.float64(i - 4 + (1 if fix == "right_rate" else 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(3e-3 / np.sqrt(step))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 1))

    def before_step(case, i):
        for group in case.optimizer.param_groups:
            group["lr"] = rate(i, fix) * group["share"]

    decay, rest = [p for p in m.parameters() if p.dim() > 1], [p for p in m.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1, "share": 1.0}, {"params": rest, "weight_decay": 0.0, "share": 0.5}], lr=1e-3)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(10), opt, before_step=before_step, clip_norm=1.0)
