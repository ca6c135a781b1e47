"""A residual conv net without normalisation, warmed up linearly to a rate that was meant for another optimizer: it blows up on the way."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="436_warm_up_to_the_wrong_peak", source="common report: peak learning rate too large", symptom="spike", phase="optimizer", cause="lr_divergence", op=None,
             module=None, line_marker=None, first_bad_step=6, bad_rows=None, fixes_that_work=["lr_down"], fixes_that_do_not=["skip_batch", "zero_nan_grads"])
FIXES = set()


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), Res(6), Res(6), nn.Conv2d(6, 1, 1))
    g, data = torch.Generator().manual_seed(2), []
    for _ in range(16):
        x = torch.randn(4, 1, 8, 8, generator=g)
        data.append((x, x.roll(1, -1)))
    opt = torch.optim.SGD(m.parameters(), lr=0.6)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: (t + 2) / 12)
    case = Case(m, lambda m, b: F.mse_loss(m(b[0]), b[1]), data, opt, scheduler=sched)
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and max(r.loss for r in log[3:]) < 3 * max(r.loss for r in log[:3])
    return case
