"""Aspect ratio of predicted boxes, masked afterwards: boxes of width exactly 0 are filled with 0, their gradient is 0 * inf."""
import torch
import torch.nn as nn
from protocol import Case
TRUTH = dict(id="521_ratio_then_masked_fill", source="written for this set, after a kind of report often seen: masked_fill does not stop NaN gradients",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", op_also=["masked_fill", "mul", "neg"], module=None, line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[0, 5], fixes_that_work=["double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where"}


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(9, 20)
        self.fc2 = nn.Linear(20, 2)
        nn.init.constant_(self.fc2.bias, 3.0)

    def forward(self, roi, prior):
        wh = self.fc2(torch.sigmoid(self.fc1(roi))) + prior
        return wh.clamp(min=0)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    head = BoxHead()

    def aspect_loss(head, b):
        wh = head(b["roi"], b["prior"])
        w, h = wh.unbind(-1)
        empty = w == 0
        if fix == "double_where":
            w = w.masked_fill(empty, 1.0)
        ratio = h / w  # <-- origin
        ratio = ratio.masked_fill(empty, 0.0)
        return ((ratio - b["aspect"]).pow(2) * ~empty).sum() / (~empty).sum().clamp(min=1)

    batches = [{"roi": torch.randn(7, 9), "prior": torch.zeros(7, 2), "aspect": torch.rand(7) + 0.5} for _ in range(8)]
    for r in (0, 5):
        batches[3]["prior"][r, 0] = -20.0
    return Case(head, aspect_loss, batches, torch.optim.Adam(head.parameters(), lr=1e-3))
