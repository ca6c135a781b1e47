"""CONTROL: the hardest negative is the minimum over distances in which the positives were set to +inf: the infinity never wins."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="299_control_inf_in_hard_negative_mining", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    z = F.normalize(m(b["x"]), dim=-1)
    d = 1 - z @ z.T
    same = b["c"][:, None] == b["c"][None]
    eye = torch.eye(len(z), dtype=torch.bool)
    far = d.masked_fill(~same | eye, float("-inf")).amax(1)
    near = d.masked_fill(same, float("inf")).amin(1)
    has_pair = torch.isfinite(far)
    return F.relu(torch.where(has_pair, far, torch.zeros_like(far)) - near + 0.3).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(8, 24, 6), B.xy(12, bs=10), torch.Generator().manual_seed(4)
    for b in data:
        b["c"] = torch.randint(0, 4, (10,), generator=g)
    return Case(m, loss_fn, data, B.adam(m))
