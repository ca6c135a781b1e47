"""Returns are divided by their volatility and squashed. An instrument that did not trade has volatility zero: infinity, which tanh turns into
one. The loss is fine; backward multiplies the slope of tanh, zero, with the infinite slope of the division."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="1004_tanh_swallows_the_infinity", source="common report: NaN gradients behind a saturated activation",
             symptom="nan_grad", phase="backward", cause="zero_division", op="div", module="sharpe", line_marker="# <-- origin", first_bad_step=6, bad_rows=[2, 5],
             fixes_that_work=["eps", "double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "double_where"}


class Sharpe(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, gain, volatility):
        if self.fix == "eps":
            volatility = volatility.clamp_min(1e-4)
        if self.fix == "double_where":
            volatility = torch.where(volatility > 0, volatility, torch.ones_like(volatility))
        return gain / volatility  # <-- origin


class Trader(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.forecast, self.sharpe, self.size = nn.Linear(5, 1), Sharpe(fix), nn.Linear(1, 1)

    def forward(self, x, volatility):
        return self.size(torch.tanh(self.sharpe(self.forecast(x), volatility)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Trader(fix), torch.Generator().manual_seed(104)
    data = [dict(x=torch.randn(7, 5, generator=g), vol=0.5 + torch.rand(7, 1, generator=g), y=torch.randn(7, 1, generator=g)) for _ in range(10)]
    data[6]["vol"][[2, 5]] = 0.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"], b["vol"]), b["y"]), data, torch.optim.Adam(m.parameters(), lr=1e-3))
