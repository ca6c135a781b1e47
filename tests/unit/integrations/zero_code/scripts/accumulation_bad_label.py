"""Four micro-batches to an update; one label was never filled in."""
# ruff: noqa: B007
# truth: op= cause=DX401 samples=90 line=any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ACCUMULATION_STEPS = 4


class Houses(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(5)
        self.features = torch.randn(128, 6, generator=g)
        self.price = self.features.sum(1) + 1.0
        self.price[90] = float("nan")

    def __len__(self):
        return 128

    def __getitem__(self, index):
        return {"features": self.features[index], "price": self.price[index]}


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader = DataLoader(Houses(), batch_size=4, shuffle=True)
criterion = nn.MSELoss()
for epoch in range(2):
    optimizer.zero_grad()
    for step, batch in enumerate(loader):
        pred = model(batch["features"]).squeeze(-1)
        loss = criterion(pred, batch["price"])
        loss = loss / ACCUMULATION_STEPS
        loss.backward()
        if (step + 1) % ACCUMULATION_STEPS == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
