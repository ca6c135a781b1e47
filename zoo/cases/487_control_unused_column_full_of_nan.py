"""CONTROL: the batch carries bookkeeping columns with NaN and inf (time of next visit, price limits) that the model never reads."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="487_control_unused_column_full_of_nan", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 16, 1)
    data = []
    for i, b in enumerate(B.xy(10)):
        nxt = torch.full((6,), float("nan"))
        nxt[i % 6] = 3.0
        data.append({"meta": {"next_visit": nxt, "limit": torch.tensor([float("-inf"), float("inf")]).repeat(3)}, "features": (b["x"], b["y"])})
    return Case(m, lambda m, b: F.huber_loss(m(b["features"][0]), b["features"][1]), data, B.adam(m, 2e-3))
