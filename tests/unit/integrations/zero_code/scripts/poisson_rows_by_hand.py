"""Counts with an exponential link, minibatches cut out of tensors by hand; row 210 is out of scale."""
# truth: op=exp cause=DX204 samples=row

import torch
from torch import nn

torch.manual_seed(0)
N, B = 256, 32
X = torch.randn(N, 6)
counts = torch.poisson(torch.ones(N) * 2)
model = nn.Linear(6, 1)
X[210] = 500 * torch.sign(model.weight.detach()[0])
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(3):
    perm = torch.randperm(N)
    for i in range(0, N, B):
        idx = perm[i : i + B]
        xb, yb = X[idx], counts[idx]
        rate = torch.exp(model(xb).squeeze(1))  # BUG
        loss = (rate - yb * torch.log(rate + 1e-8)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, "loss", loss.item())
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
