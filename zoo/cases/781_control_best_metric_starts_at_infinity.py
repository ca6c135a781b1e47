"""CONTROL: the module keeps its book in buffers: the best loss so far starts at inf, the validation score not measured yet is NaN, and the
correlation of a constant batch is NaN by right. None of them enters the loss."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="781_control_best_metric_starts_at_infinity", source="common sight: torchmetrics MinMetric starts at inf", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, nonfinite_in_passing=True, fixes_that_work=[], fixes_that_do_not=[])


class Book(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("best", torch.tensor(float("inf")))
        self.register_buffer("val_score", torch.full((2,), float("nan")))
        self.register_buffer("corr", torch.tensor(0.0))

    @torch.no_grad()
    def forward(self, loss, pred, y):
        self.best.copy_(torch.minimum(self.best, loss))
        p, t = pred.flatten() - pred.mean(), y.flatten() - y.mean()
        self.corr.copy_((p * t).sum() / (p.norm() * t.norm()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.book = B.mlp(8, 16, 1), Book()

    def forward(self, x):
        return self.net(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(10)
    data[4]["y"] = torch.zeros_like(data[4]["y"])

    def loss_fn(m, b):
        pred = m(b["x"])
        loss = F.mse_loss(pred, b["y"])
        m.book(loss, pred, b["y"])
        return loss

    return Case(m, loss_fn, data, B.adam(m, 1e-3))
