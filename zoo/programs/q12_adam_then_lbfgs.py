"""A heat-equation network with second derivatives: Adam first, then LBFGS with a line search to polish it."""
import hashlib

import torch
import torch.nn as nn

torch.set_num_threads(1)


def residual(net, tx):
    tx = tx.requires_grad_(True)
    u = net(tx)
    d = torch.autograd.grad(u.sum(), tx, create_graph=True)[0]
    uxx = torch.autograd.grad(d[:, 1].sum(), tx, create_graph=True)[0][:, 1]
    return d[:, 0] - 0.1 * uxx


def total_loss(net, inside, start, edge):
    f = residual(net, inside.clone())
    u0 = net(start).squeeze(1) - torch.sin(torch.pi * start[:, 1])
    return f.square().mean() + 100 * u0.square().mean() + 100 * net(edge).square().mean()


torch.manual_seed(33)
g = torch.Generator().manual_seed(33)
inside = torch.rand(64, 2, generator=g)
start = torch.stack([torch.zeros(24), torch.rand(24, generator=g)], 1)
edge = torch.stack([torch.rand(24, generator=g), torch.randint(0, 2, (24,), generator=g).float()], 1)
net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
adam = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(80):
    adam.zero_grad()
    loss = total_loss(net, inside, start, edge)
    loss.backward()
    adam.step()
print("after Adam", round(loss.item(), 4))
lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=8, history_size=10, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = total_loss(net, inside, start, edge)
    loss.backward()
    return loss


for _ in range(4):
    loss = lbfgs.step(closure)
    print("LBFGS", round(float(loss), 5))
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
