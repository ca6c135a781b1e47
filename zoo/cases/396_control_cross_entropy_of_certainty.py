"""CONTROL: binary cross-entropy of probabilities that are exactly 0 or 1; the library bounds its logarithm."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="396_control_cross_entropy_of_certainty", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return F.binary_cross_entropy(torch.sigmoid(m(b["x"]) * b["sharp"][:, None]), b["c"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(8, 12, 1), B.xy(10), torch.Generator().manual_seed(3)
    for i, b in enumerate(data):
        b["sharp"], b["c"] = torch.ones(6), torch.randint(0, 2, (6, 1), generator=g).float()
        b["sharp"][i % 6] = 1e5
    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
