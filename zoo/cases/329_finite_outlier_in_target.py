"""A sensor wrote its largest number (3e38) into one target: finite, but its square is not."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="329_finite_outlier_in_target", source="common report: sentinel values of a sensor in the table",
             symptom="inf_loss", phase="data", cause="bad_input", op=None, op_also=["mse_loss"], module=None, line_marker=None, input_key="y",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 2), B.xy(9, k=2)
    data[5]["y"][4, 1] = 3e38
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
