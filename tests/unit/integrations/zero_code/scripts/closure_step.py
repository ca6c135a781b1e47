"""The loss and its backward live in a closure that the optimizer calls."""
# ruff: noqa: B023
# truth: op=log cause=DX203 samples=55

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, Y = torch.rand(80, 4) + 0.2, torch.rand(80, 1)
X[55] = -3.0
net = nn.Sequential(nn.Linear(4, 1), nn.ReLU())
nn.init.constant_(net[0].weight, 0.5)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

for epoch in range(2):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):

        def closure():
            optimizer.zero_grad()
            prediction = net(x)
            loss = ((torch.log(prediction) - torch.log1p(y)) ** 2).mean()  # BUG
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    print(f"epoch {epoch} loss {loss.item():.3f}")
print("weights finite:", all(p.isfinite().all().item() for p in net.parameters()))
