"""Demand forecasting with MAPE as the loss. Shops closed on a holiday sold exactly 0."""
import torch
from torch import nn
from protocol import Case

TRUTH = dict(id="505_mape_on_closed_days", source="written for this set, after a kind of report often seen: MAPE is inf/nan",
             symptom="inf_loss", phase="loss", cause="zero_division", op="div", op_also=["true_divide"], module=None, line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[1, 6], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Forecaster(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 3)

    def forward(self, history):
        _, h = self.rnn(history.unsqueeze(-1))
        return self.out(h[-1])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    batches = []
    for day in range(9):
        sales = torch.rand(8, 10) + 0.5
        future = torch.rand(8, 3) + 0.5
        if day == 3:
            future[1, 2] = 0.0
            future[6, 0] = 0.0
        batches.append((sales, future))

    def mape(model, batch):
        history, actual = batch
        forecast = model(history)
        denom = actual.abs() + 1e-2 if fix == "eps" else actual.abs()
        return ((forecast - actual).abs() / denom).mean()  # <-- origin

    model = Forecaster()
    return Case(model, mape, batches, torch.optim.Adam(model.parameters(), lr=3e-3), clip_norm=5.0)
