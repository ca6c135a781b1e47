"""Customer lifetime value: the mean of a log-normal, exp(mu + sigma^2 / 2), for customers with heavy-tailed history."""
import torch
from torch import nn
import torch.nn.functional as F
from protocol import Case

TRUTH = dict(id="512_lognormal_mean_of_big_spender", source="written for this set, after a kind of report often seen: ZILN loss overflow",
             symptom="inf_loss", phase="forward", cause="exp_overflow", op="exp", module="head", line_marker="# <-- origin", first_bad_step=5, bad_rows=[7],
             fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "zero_nan_grads", "lr_down"])
FIXES = {"clamp"}


class LogNormalHead(nn.Module):
    def __init__(self, dim, limit=None):
        super().__init__()
        self.mu = nn.Linear(dim, 1)
        self.spread = nn.Linear(dim, 1)
        with torch.no_grad():
            self.spread.weight.fill_(0.02)
            self.spread.weight[0, 0] = 0.5
        self.limit = limit

    def forward(self, x):
        mu, sigma = self.mu(x.tanh()), F.softplus(self.spread(x))
        log_mean = mu + 0.5 * sigma**2
        if self.limit:
            log_mean = log_mean.clamp(max=self.limit)
        return torch.exp(log_mean).squeeze(1)  # <-- origin


class LTV(nn.Module):
    def __init__(self, limit=None):
        super().__init__()
        self.cat = nn.Embedding(6, 3)
        self.head = LogNormalHead(6, limit)

    def forward(self, spend, kind):
        return self.head(torch.cat([spend, self.cat(kind)], dim=1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = LTV(limit=30.0 if fix == "clamp" else None)
    days = []
    for d in range(9):
        spend = torch.rand(8, 3) * 6
        spend[d % 7, 0] = 18 + d  # whales come every day
        if d == 5:
            spend[7, 0] = 41.0
        days.append({"spend": spend, "kind": torch.randint(6, (8,)), "ltv": torch.rand(8) * 100})

    def msle(model, b):
        return (torch.log1p(model(b["spend"], b["kind"])) - torch.log1p(b["ltv"])).abs().mean()

    return Case(model, msle, days, torch.optim.Adagrad(model.parameters(), lr=1e-3))
