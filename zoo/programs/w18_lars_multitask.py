"""Two-task net trained with a home-made LARS."""

import torch
from torch import nn
import torch.nn.functional as F


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0, eta=0.02, momentum=0.9):
        super().__init__(params, dict(lr=lr, eta=eta, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                trust = group["eta"] * p.norm() / p.grad.norm()
                update = p.grad * trust
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(p)
                state["buffer"].mul_(group["momentum"]).add_(update)
                p.sub_(state["buffer"], alpha=group["lr"])


class TwoTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.Tanh())
        self.kind = nn.Linear(32, 4)
        self.size = nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.size(h).squeeze(-1)


def batches(n=120, size=16):
    g = torch.Generator().manual_seed(15)
    w = torch.randn(10, 4, generator=g)
    for i in range(n):
        x = torch.randn(size, 10, generator=g)
        kind = (x @ w).argmax(-1)
        measured = (torch.rand(size, generator=g) < 0.5).float()
        if i == 68:
            measured.zero_()  # scales were off that day
        yield x, kind, x[:, 0] * 2, measured


torch.manual_seed(0)
model = TwoTask()
optimizer = LARS(model.parameters(), lr=0.3)
for step, (x, kind, size, measured) in enumerate(batches()):
    logits, guess = model(x)
    loss = F.cross_entropy(logits, kind) + ((guess - size) ** 2 * measured).sum() / measured.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 12 == 0:
        print(f"step {step} loss {loss.item():.4f}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
