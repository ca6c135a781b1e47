"""Insurance claims: Cauchy noise, some losses are a million times the usual; clipping copes."""
import hashlib
import torch
from torch import nn

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
beta = torch.randn(5, 1)
worst = 0.0
for step in range(150):
    x = torch.randn(16, 5)
    y = x @ beta + 0.2 * torch.empty(16, 1).cauchy_()
    if step in (50, 51, 90):
        y[0] = 1e7
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    worst = max(worst, loss.item())
    if step % 25 == 0:
        print(f"{step} loss {loss.item():.3g} norm {norm:.3g} worst {worst:.3g}")
print("FINITE" if all(torch.isfinite(t).all() for t in net.state_dict().values()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in net.state_dict().values())).hexdigest())
