"""CONTROL: a curriculum whose targets grow with every batch from the very first. The loss doubles and doubles again, and the old batches do no worse."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1081_control_targets_grow_from_the_first_step", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 1), B.xy(18)
    for i, batch in enumerate(data):
        batch["y"] = batch["y"] * (1 + i) ** 2
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
