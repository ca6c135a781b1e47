"""Physics-informed network for the screened Poisson equation on a disc; the net sees the radius as an extra feature."""
import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, xy):
        radius = torch.sqrt((xy * xy).sum(1, keepdim=True))
        return self.body(torch.cat([xy, radius], 1))


def residual(net, xy):
    xy = xy.clone().requires_grad_(True)
    u = net(xy)
    grad = torch.autograd.grad(u.sum(), xy, create_graph=True)[0]
    second = 0.0
    for k in range(2):
        second = second + torch.autograd.grad(grad[:, k].sum(), xy, create_graph=True)[0][:, k]
    return second - u[:, 0] + torch.exp(-4 * (xy * xy).sum(1))


def collocation():
    g = torch.Generator().manual_seed(5)
    pts = torch.rand(400, 2, generator=g) * 2 - 1
    pts[217] = 0.0  # someone wanted the centre in there
    return pts


def train(steps=60, size=40):
    torch.manual_seed(3)
    net, pts = Field(), collocation()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
    angle = torch.linspace(0, 6.28, 32)
    rim = torch.stack([angle.cos(), angle.sin()], 1)
    for step in range(steps):
        k = (step * size) % len(pts)
        loss = residual(net, pts[k:k + size]).pow(2).mean() + net(rim).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(step, loss.item())
    return net


net = train()
print("FINITE" if all(bool(torch.isfinite(p).all()) for p in net.parameters()) else "POISONED")
