"""Cosine annealing with warm restarts: at each restart the rate jumps by a factor of a thousand and the loss has a bump."""
import torch
from torch import nn, optim
from protocol import Case

TRUTH = dict(id="588_control_sgdr_restarts", source="https://arxiv.org/abs/1608.03983", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 3))
    opt = optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    sched = optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=8, T_mult=2, eta_min=1e-4)
    proto = torch.randn(3, 1, 8, 8)
    data = []
    for _ in range(40):
        y = torch.randint(0, 3, (16,))
        data.append({"x": proto[y] + 0.7 * torch.randn(16, 1, 8, 8), "y": y})

    def loss_fn(model, b):
        return nn.functional.cross_entropy(model(b["x"]), b["y"])

    return Case(model, loss_fn, data, opt, scheduler=sched, healthy=lambda log: sum(r.loss for r in log[-5:]) < 0.5 * sum(r.loss for r in log[:5]))
