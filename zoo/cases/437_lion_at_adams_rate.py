"""A hand-written Lion run at three hundred times its usual rate: every weight moves by the rate at each step, the loss climbs."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="437_lion_at_adams_rate", source="https://arxiv.org/abs/2302.06675: the rate must be smaller than AdamW's", symptom="spike", phase="optimizer", cause="lr_divergence", op=None,
             module=None, line_marker=None, first_bad_step=1, bad_rows=None, fixes_that_work=["lr_down"], fixes_that_do_not=["clip", "skip_batch", "zero_nan_grads"])
FIXES = set()


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self, closure=None):
        for grp in self.param_groups:
            for p in grp["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                b1, b2 = grp["betas"]
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-grp["lr"])
                m.lerp_(p.grad, 1 - b2)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.mlp = nn.RNN(3, 16, nonlinearity="relu", batch_first=True), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.mlp(self.rnn(x)[0][:, -1])[:, 0]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Forecaster(), torch.Generator().manual_seed(3), []
    for _ in range(10):
        x = torch.randn(8, 10, 3, generator=g)
        data.append({"inputs": x, "labels": x[:, :, 0].mean(1)})
    case = Case(m, lambda m, b: F.mse_loss(m(b["inputs"]), b["labels"]), data, Lion(m.parameters(), lr=0.3))
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and max(r.loss for r in log[1:]) < 10 * log[0].loss + 1
    return case
