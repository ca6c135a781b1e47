"""Visits per hour with a softplus rate and the Poisson deviance by xlogy: where the count is 0 and the
rate has underflown to 0 the value is 0, as it should be, and the derivative count / rate is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="708_poisson_deviance_of_a_rate_of_zero", source="after https://github.com/pytorch/pytorch/issues/80770 (derivatives of xlogy at 0)",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="xlogy", module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[2, 6],
             fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.hour, self.out = nn.Embedding(24, 8), nn.Linear(8 + 3, 1)

    def forward(self, hour, weather):
        return F.softplus(self.out(torch.cat([self.hour(hour), weather], -1))).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Rate(), torch.Generator().manual_seed(78)
    with torch.no_grad():
        m.out.bias.fill_(6.0)
        m.out.weight[0, 8:] = 0.1
    data = []
    for _ in range(9):
        hour, weather = torch.randint(0, 24, (8,), generator=g), torch.rand(8, 3, generator=g)
        data.append((hour, weather, torch.poisson(torch.full((8,), 5.0), generator=g)))
    data[5][1][[2, 6], 0] = -1500.0  # a sensor that reports -1500 at night: no visits are predicted, and there were none
    data[5][2][[2, 6]] = 0.0

    def loss_fn(m, batch):
        hour, weather, count = batch
        rate = m(hour, weather)
        if fix == "eps":
            rate = rate + 1e-6
        if fix == "clamp":
            rate = rate.clamp_min(1e-6)
        gain = torch.xlogy(count, rate)  # <-- origin
        return 2 * (torch.xlogy(count, count) - gain - count + rate).mean()

    return Case(m, loss_fn, data, torch.optim.RMSprop(m.parameters(), lr=1e-3))
