"""A per-sample loss under torch.vmap divides each predicted flow by its length; a masked point has length 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="318_vmapped_direction_of_origin", source="common report: direction loss of a zero vector",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(8, 12, 3), B.xy(8), torch.Generator().manual_seed(4)

    def one(flow, aim):
        length = torch.linalg.vector_norm(flow)
        if fix == "eps":
            length = length + 1e-6
        return 1 - torch.dot(flow / length, aim)  # <-- origin

    def loss_fn(m, b):
        return torch.vmap(one)(m(b["x"]) * b["seen"][:, None], b["aim"]).mean()

    for b in data:
        b["aim"], b["seen"] = nn.functional.normalize(torch.randn(6, 3, generator=g), dim=-1), torch.ones(6)
    data[4]["seen"][3] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
