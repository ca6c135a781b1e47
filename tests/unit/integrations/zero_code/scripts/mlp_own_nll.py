"""A classifier with its own negative log-likelihood; sample 137 has an enormous feature."""
# ruff: noqa: B007
# truth: op=log cause=DX203 samples=137

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(256, 10)
Y = (X[:, 0] > 0).long()
X[137] = torch.where(Y[137] > 0, -1e4, 1e4)
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
with torch.no_grad():
    model[2].weight[0] = -model[2].weight[1].abs()
    model[2].weight[1].abs_()
    if Y[137] > 0:
        model[2].weight.neg_()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(2):
    running = 0.0
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        probs = torch.softmax(model(x), dim=1)
        picked = probs[torch.arange(len(y)), y]
        loss = -torch.log(picked).mean()  # BUG
        loss.backward()
        optimizer.step()
        running += loss.item()
    print(f"epoch {epoch}: loss {running / len(loader):.4f}")
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
