"""A closure-driven SAM optimizer on tasks of very unequal scale that take turns."""
import hashlib

import torch
import torch.nn as nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        moves = [p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)) for p in params]
        for p, e in zip(params, moves):
            p.add_(e)
        self.zero_grad()
        closure()
        for p, e in zip(params, moves):
            p.sub_(e)
        self.base.step()
        self.zero_grad()
        return loss


def tasks():
    scale = (1.0, 1e3, 1e-3)
    k = 0
    while True:
        x = torch.randn(24, 6)
        yield k % 3, x, scale[k % 3] * x.pow(k % 3 + 1).mean(1, keepdim=True)
        k += 1


torch.manual_seed(19)
net = nn.ModuleDict(dict(body=nn.Sequential(nn.Linear(6, 32), nn.ReLU()), heads=nn.ModuleList(nn.Linear(32, 1) for _ in range(3))))
opt = SAM(net.parameters(), torch.optim.SGD, rho=0.02, lr=1e-5, momentum=0.9)
losses = [[], [], []]
for n, (task, x, y) in zip(range(240), tasks()):

    def closure():
        loss = nn.functional.mse_loss(net["heads"][task](net["body"](x)), y)
        loss.backward()
        return loss

    losses[task].append(opt.step(closure).item())
print("last losses", [f"{l[-1]:.3g}" for l in losses])
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
