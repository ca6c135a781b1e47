"""Physics-informed fit: the weight of the residual goes from 0 to 1000 at step 60, the rate restarts."""
import hashlib
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=30, eta_min=0.0)
for step in range(120):
    t = (torch.rand(32, 1) * 3).requires_grad_(True)
    u = net(t)
    du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
    ddu = torch.autograd.grad(du.sum(), t, create_graph=True)[0]
    residual = (ddu + 9.0 * u).pow(2).mean()
    t0 = torch.zeros(1, 1)
    initial = (net(t0) - 1).pow(2).mean()
    weight = 0.0 if step < 60 else 1000.0
    loss = initial + weight * residual
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.5g}")
print("FINITE" if all(torch.isfinite(t).all() for t in net.state_dict().values()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in net.state_dict().values())).hexdigest())
