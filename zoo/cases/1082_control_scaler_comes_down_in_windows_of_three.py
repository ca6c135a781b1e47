"""CONTROL: a loss scale that starts far too high, while gradients are summed over three batches: it comes down once in a window."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1082_control_scaler_comes_down_in_windows_of_three", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 32, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    return Case(m, lambda m, b: 30 * F.mse_loss(m(b["x"]).float(), b["y"]), B.xy(30), B.adam(m), autocast=torch.float16, scaler=scaler, accumulation=3, clip_norm=1.0)
