"""Fitting a decay law with LBFGS and closures; the amplitude may wander below zero."""
import torch
import torch.nn as nn

torch.manual_seed(0)


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.amplitude = nn.Parameter(torch.tensor([0.4, 0.3]))
        self.rate = nn.Parameter(torch.tensor([0.5, 2.0]))
        self.offset = nn.Parameter(torch.tensor(0.05))

    def forward(self, t):
        return (self.amplitude * torch.exp(-self.rate * t[:, None])).sum(1) + self.offset


def observations(k):
    t = torch.linspace(0, 4, 60)
    y = 1.2 * torch.exp(-0.7 * t) + 0.3 * torch.exp(-3 * t) + 0.02
    return t, y * (1 + 0.02 * torch.randn(60)) if k < 4 else y * 0.01


model = Decay()
opt = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=8, history_size=5)
trace = []
for k in range(10):
    t, y = observations(k)

    def closure():
        opt.zero_grad()
        pred = model(t)
        loss = (torch.log(pred) - torch.log(y)).pow(2).mean()  # BUG
        loss.backward()
        return loss

    loss = opt.step(closure)
    trace.append(float(loss.detach()))
    print("window", k, "loss", trace[-1])

print("amplitudes", model.amplitude.tolist())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
