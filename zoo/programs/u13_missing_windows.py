"""Forecasting with gaps: NaN marks a missing reading; each window is scaled by what there is in it."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, n=256, length=24):
        g = torch.Generator().manual_seed(28)
        t = torch.arange(length + 1) / 4
        self.x = torch.sin(t + torch.rand(n, 1, generator=g) * 6) * 3 + 20 + 0.2 * torch.randn(n, length + 1, generator=g)
        gaps = torch.rand(n, length, generator=g) < 0.15
        self.x[:, :-1][gaps] = float("nan")
        self.x[187, :-1] = float("nan")  # the logger was off all day

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i, :-1], self.x[i, -1]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        seen = ~x.isnan()
        level = x.nanmean(1, keepdim=True)
        filled = torch.where(seen, x - level, torch.zeros_like(x))
        h, _ = self.gru(torch.stack([filled, seen.float()], -1))
        return self.head(h[:, -1]).squeeze(1) + level.squeeze(1)


class Experiment:
    def __init__(self):
        self.model = Forecaster()
        self.opt = torch.optim.RMSprop(self.model.parameters(), lr=2e-3)
        self.loader = DataLoader(Windows(), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1))

    def run(self, epochs=3):
        for epoch in range(epochs):
            for x, y in self.loader:
                self.opt.zero_grad()
                loss = nn.functional.huber_loss(self.model(x), y)
                loss.backward()
                self.opt.step()
            print(epoch, loss.item())


torch.manual_seed(6)
e = Experiment()
e.run()
print("FINITE" if all(torch.isfinite(p).all() for p in e.model.parameters()) else "POISONED")
