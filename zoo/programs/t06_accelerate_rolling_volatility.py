"""Next-day direction from prices: the net gets rolling mean and rolling volatility, computed with cumulative sums."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

WINDOW = 10


class Prices(Dataset):
    def __init__(self, n=200, length=120):
        g = torch.Generator().manual_seed(9)
        walk = torch.randn(n, length, generator=g).cumsum(1) * 0.4
        self.series = 20 + walk
        self.series[133] = 52000.0 + torch.randn(length, generator=g) * 0.01  # priced in another currency, pegged
        self.label = (walk[:, -1] > walk[:, -6]).long()

    def __len__(self):
        return len(self.series)

    def __getitem__(self, i):
        return {"series": self.series[i], "label": self.label[i], "id": i}


class Rolling(nn.Module):
    def forward(self, x):
        zero = torch.zeros(len(x), 1)
        s1 = torch.cat([zero, x.cumsum(1)], 1)
        s2 = torch.cat([zero, (x * x).cumsum(1)], 1)
        mean = (s1[:, WINDOW:] - s1[:, :-WINDOW]) / WINDOW
        var = (s2[:, WINDOW:] - s2[:, :-WINDOW]) / WINDOW - mean * mean
        vol = torch.sqrt(var)
        return torch.cat([mean / mean[:, :1] - 1, vol / mean], 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rolling = Rolling()
        self.mlp = nn.Sequential(nn.Linear(2 * 111, 32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.mlp(self.rolling(x))


def main():
    acc = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(2)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, opt, loader = acc.prepare(model, opt, DataLoader(Prices(), batch_size=10, shuffle=False))
    for epoch in range(2):
        for batch in loader:
            with acc.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["series"]), batch["label"])
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
        acc.print(epoch, loss.item())
    acc.print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
