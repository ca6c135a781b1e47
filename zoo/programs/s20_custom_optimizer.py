"""Normalised gradient descent as an Optimizer subclass, on a set of tasks of which some are solved exactly."""
import torch
import torch.nn as nn
from torch.optim import Optimizer


class NormalizedSGD(Optimizer):
    """Every tensor moves by the same length."""

    def __init__(self, params, lr=0.01, momentum=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = p.grad / p.grad.norm()  # BUG
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(direction)
                p.add_(buf, alpha=-group["lr"])
        return loss


def hinge(out, y):
    return torch.relu(1 - out * y).mean()


def make_task(k):
    x = torch.randn(20, 5)
    y = torch.sign(x[:, :1] + 1e-6)
    if k == 30:
        x = x.sign() * 400 * torch.tensor([1.0, 0, 0, 0, 0])  # far from the border: every margin is met
    return x, y


torch.manual_seed(9)
model = nn.Linear(5, 1, bias=False)
with torch.no_grad():
    model.weight.copy_(torch.tensor([[1.0, 0.1, -0.1, 0.0, 0.1]]))
opt = NormalizedSGD(model.parameters(), lr=0.01, momentum=0.5)
losses = []
for k in range(60):
    x, y = make_task(k)
    opt.zero_grad()
    loss = hinge(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if k % 12 == 0:
        print(f"{k:3d} {losses[-1]:.4f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
