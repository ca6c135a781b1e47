"""Learn a damped oscillator with a neural ODE (fixed-step Euler, known cubic friction)."""

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, y):
        friction = -0.5 * y ** 3
        return self.net(y) + friction


def integrate(f, y, steps=20, h=0.1):
    path = [y]
    for _ in range(steps):
        y = y + h * f(y)
        path.append(y)
    return torch.stack(path, 1)


@torch.no_grad()
def reference(y):
    return integrate(lambda v: torch.stack([v[:, 1], -v[:, 0]], -1) - 0.5 * v ** 3, y)


def main():
    torch.manual_seed(2)
    starts = torch.rand(600, 2) * 3 - 1.5
    paths = reference(starts)
    starts[333] = torch.tensor([31.0, -0.2])  # decimal point lost
    field = Field()
    optimizer = torch.optim.RMSprop(field.parameters(), lr=2e-3)
    for epoch in range(2):
        for idx in torch.randperm(600).split(15):
            predicted = integrate(field, starts[idx])
            loss = (predicted - paths[idx]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} L1 {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in field.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
