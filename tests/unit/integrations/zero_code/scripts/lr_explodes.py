"""A learning rate a thousand times too high: the loss grows until it overflows."""
# truth: op=* cause=DX501 samples=any remedy=none line=any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(400, 10)
Y = X @ torch.randn(10, 1) + 0.1 * torch.randn(400, 1)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
mse = nn.MSELoss()
loader = DataLoader(TensorDataset(X, Y), batch_size=40, shuffle=True)


def evaluate():
    with torch.no_grad():
        return mse(model(X), Y).item()


for epoch in range(1):
    for x, y in loader:
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, evaluate())
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
