"""Learns from the logarithm of counts; one sample has a count of zero."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
counts = torch.randint(1, 9, (40, 4)).float()
counts[17, 2] = 0.0
data = TensorDataset(counts, torch.randn(40, 1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.log(x))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in DataLoader(data, batch_size=8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
