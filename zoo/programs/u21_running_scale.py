"""Value regression; observations are scaled by running statistics, which are moved after each batch has been used."""
import torch
import torch.nn as nn


class RunningScale(nn.Module):
    def __init__(self, d, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("var", torch.ones(d))

    def forward(self, x):
        y = (x - self.mean) / (self.var + 1e-5).sqrt()
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), self.momentum)
                self.var.lerp_(x.var(0), self.momentum)
        return y


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = RunningScale(5)
        self.body = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.body(self.scale(x)).squeeze(1)


def trajectories(n=12):
    g = torch.Generator().manual_seed(16)
    out = []
    for i in range(n):
        length = 1 if i == 8 else int(torch.randint(10, 30, (1,), generator=g))
        x = torch.randn(length, 5, generator=g) * 4 + 2
        out.append((x, x.sum(1) * 0.1))
    return out


def train():
    torch.manual_seed(7)
    critic = Critic()
    opt = torch.optim.Adam(critic.parameters(), lr=3e-3)
    for epoch in range(4):
        for x, ret in trajectories():
            loss = nn.functional.mse_loss(critic(x), ret)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())
    return critic


critic = train()
state = list(critic.state_dict().values())
print("FINITE" if all(torch.isfinite(t).all() for t in state) else "POISONED")
