"""The author met "element 0 of tensors does not require grad" after rescaling the predictions with the numpy scaler of his pipeline and
wrapped the result in torch.tensor(..., requires_grad=True). Backward runs, the forecaster receives nothing."""
import warnings
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="718_predictions_wrapped_into_a_new_tensor", source="common report: model does not learn, predictions re-wrapped with torch.tensor(..., requires_grad=True)",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module=None, module_also=["", "lstm", "head"], line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["no_detach"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"no_detach"}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, past):
        return self.head(self.lstm(past)[0][:, -1])


class Scaler:
    mean, std = 20.0, 6.5

    def inverse(self, a):
        return a * self.std + self.mean


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, scaler = Forecaster(), torch.Generator().manual_seed(88), Scaler()
    start = [p.detach().clone() for p in m.parameters()]
    data = [{"past": torch.randn(6, 10, 2, generator=g), "future": 20 + 5 * torch.randn(6, 3, generator=g)} for _ in range(10)]

    def loss_fn(m, b):
        pred = m(b["past"])
        if fix == "no_detach":
            degrees = scaler.inverse(pred)
        else:
            degrees = torch.tensor(scaler.inverse(pred.detach().numpy()), requires_grad=True)
        return F.l1_loss(degrees, b["future"])

    def healthy(log):
        return all(r.loss_ok and r.grad_ok for r in log) and all(not torch.equal(p, q) for p, q in zip(m.parameters(), start))

    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-3), healthy=healthy)
