"""CONTROL: multi-task targets with NaN for "not measured"; the entries are picked by a boolean mask before any arithmetic, and one
batch has a task without a single label."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="481_control_missing_labels_selected_away", source="standard practice in molecular property prediction", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def masked_loss(pred, y):
    total, tasks = pred.sum() * 0, 0
    for t in range(y.shape[1]):
        known = ~torch.isnan(y[:, t])
        if known.any():
            total = total + F.binary_cross_entropy_with_logits(pred[known, t], y[known, t])
            tasks += 1
    return total / max(tasks, 1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = B.mlp(8, 16, 3), torch.Generator().manual_seed(9), []
    for i in range(12):
        x = torch.randn(6, 8, generator=g)
        y = (x[:, :3] > 0).float()
        y[torch.rand(6, 3, generator=g) < 0.4] = float("nan")
        if i == 5:
            y[:, 1] = float("nan")
        data.append({"x": x, "targets": {"assays": y}})
    return Case(net, lambda m, b: masked_loss(m(b["x"]), b["targets"]["assays"]), data, B.adam(net, 3e-3))
