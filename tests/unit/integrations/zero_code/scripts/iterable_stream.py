"""A stream without indices; one record of it was measured by a broken sensor."""
# ruff: noqa: B007
# truth: op= cause=DX401 samples=row line=any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(4)
        for i in range(160):
            x = torch.randn(6, generator=g)
            y = x[:2].sum()
            if i == 101:
                x[3] = float("inf")
            yield x, y


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = iter(DataLoader(Stream(), batch_size=8))
for it in range(20):
    x, y = next(data)
    loss = nn.functional.huber_loss(model(x).squeeze(-1), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
