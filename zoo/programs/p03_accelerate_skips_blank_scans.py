"""Scan classification with Accelerate. Every scan is standardised when it is read; batches with a bad loss are left out."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, n=240):
        g = torch.Generator().manual_seed(17)
        self.label = torch.randint(0, 2, (n,), generator=g)
        self.raw = torch.rand(n, 1, 12, 12, generator=g) + self.label[:, None, None, None] * torch.linspace(0, 0.5, 12)
        self.raw[101] = 0.25  # the shutter was closed

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        x = self.raw[i]
        x = (x - x.mean()) / x.std()  # BUG
        return x, self.label[i]


def net():
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 2))


def main():
    acc = Accelerator(cpu=True)
    torch.manual_seed(1)
    model, skipped = net(), []
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, opt, loader = acc.prepare(model, opt, DataLoader(Scans(), batch_size=12))
    for epoch in range(3):
        model.train()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            if not torch.isfinite(loss):
                acc.print(f"epoch {epoch} batch {i}: loss is {loss.item()}, skipping")
                skipped.append((epoch, i))
                continue
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            total += loss.item()
        acc.print(f"epoch {epoch} loss {total / len(loader):.4f}")
    acc.print("skipped", skipped)
    acc.print("FINITE" if all(torch.isfinite(p).all() for p in acc.unwrap_model(model).parameters()) else "POISONED")


main()
