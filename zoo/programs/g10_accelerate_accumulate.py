"""Accelerate with accumulation, clipping and a data set whose second half has other labels (a planned domain shift)."""
import hashlib

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset


class Shifted(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(6)
        self.x = torch.randn(n, 12, generator=g)
        self.y = (self.x[:, 0] > 0).long()
        self.y[n // 2:] = 1 - self.y[n // 2:]
        self.x[n // 2:] *= 6.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    acc = Accelerator(cpu=True, gradient_accumulation_steps=3)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 2))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    model, opt, loader = acc.prepare(model, opt, DataLoader(Shifted(1200), batch_size=10))
    peak = 0.0
    for step, (x, y) in enumerate(loader):
        with acc.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        peak = max(peak, loss.item())
        if step % 30 == 0:
            acc.print(step, round(loss.item(), 4))
    acc.print("highest loss", round(peak, 2))
    acc.print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in acc.unwrap_model(model).parameters())).hexdigest())


if __name__ == "__main__":
    main()
