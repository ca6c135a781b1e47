"""StepLR(gamma=10) where 0.1 was meant: every few steps the rate is ten times larger."""
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from protocol import Case

TRUTH = dict(id="518_step_lr_with_gamma_ten", source="written for this set, after a kind of report often seen: step lr with gamma ten",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None, first_bad_step=5, bad_rows=None,
             fixes_that_work=["right_rate"], fixes_that_do_not=["skip_batch", "zero_nan_grads"])
FIXES = {"right_rate"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(10, 30)
        self.l2 = nn.Linear(30, 30)
        self.l3 = nn.Linear(30, 1)

    def forward(self, x):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = Net()
    w = torch.randn(10, 1)
    loader = []
    for _ in range(18):
        x = torch.randn(32, 10)
        loader.append((x, x @ w + 0.1 * torch.randn(32, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    sched = StepLR(opt, step_size=5, gamma=0.1 if fix == "right_rate" else 10)
    crit = nn.MSELoss()
    return Case(net, lambda m, b: crit(m(b[0]), b[1]), loader, opt, scheduler=sched,
                healthy=lambda log: all(r.loss_ok and r.loss < 3 * log[0].loss for r in log))
