"""Series of unequal length are stored padded with NaN; the GRU runs on the filled series and the loss takes the real entries only."""
import hashlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Ragged(Dataset):
    def __init__(self, n=150):
        g = torch.Generator().manual_seed(11)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(3, 15, (1,), generator=g))
            phase = torch.rand(1, generator=g) * 6
            self.items.append(torch.sin(torch.arange(length) * 0.7 + phase))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def pad(items):
    longest = max(len(s) for s in items)
    out = torch.full((len(items), longest), float("nan"))
    for row, s in zip(out, items):
        row[:len(s)] = s
    return {"series": out}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
        return self.out(self.gru(x[..., None])[0]).squeeze(-1)


torch.manual_seed(3)
model = Forecaster()
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for epoch in range(3):
    for batch in DataLoader(Ragged(), batch_size=10, collate_fn=pad):
        s = batch["series"]
        pred, target = model(s[:, :-1]), s[:, 1:]
        real = ~torch.isnan(target)
        loss = (pred[real] - target[real]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, "loss", loss.item(), "raw mean of the last batch", s.mean().item())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
