"""Poisson equation on the disk by a physics-informed network; LBFGS with a closure, resampled points."""
import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, xy):
        radius = torch.sqrt((xy**2).sum(1, keepdim=True))
        u = self.net(torch.cat([xy, radius], 1))
        return (1 - radius**2) * u


def laplacian(field, xy):
    xy = xy.clone().requires_grad_(True)
    u = field(xy)
    (grad,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
    total = 0.0
    for k in range(2):
        (second,) = torch.autograd.grad(grad[:, k].sum(), xy, create_graph=True)
        total = total + second[:, k]
    return total


def residual_loss(field, xy):
    source = 4.0 * torch.ones(len(xy))
    return (laplacian(field, xy) + source).pow(2).mean()


def disk_points(n, g):
    r = torch.rand(n, generator=g).sqrt() * 0.98 + 0.01
    a = torch.rand(n, generator=g) * 6.2831853
    return torch.stack([r * a.cos(), r * a.sin()], 1)


def grid_points(k):
    axis = torch.linspace(-0.6, 0.6, k)
    return torch.cartesian_prod(axis, axis)


def solve(rounds=10):
    torch.manual_seed(6)
    g = torch.Generator().manual_seed(2)
    field = Field()
    optimizer = torch.optim.LBFGS(field.parameters(), lr=0.2, max_iter=6, history_size=6)
    for k in range(rounds):
        # refine: a regular grid every few rounds, random points otherwise
        points = grid_points(5) if k == 6 else disk_points(32, g)

        def closure():
            optimizer.zero_grad()
            loss = residual_loss(field, points)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"round {k}: residual {loss.item():.4f}")
    return field


if __name__ == "__main__":
    field = solve()
    state = field.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
