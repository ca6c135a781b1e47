"""Denoising with isotropic total variation; the loop leaves out batches whose loss is NaN."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def total_variation(img):
    dx = img[:, :, :-1, 1:] - img[:, :, :-1, :-1]
    dy = img[:, :, 1:, :-1] - img[:, :, :-1, :-1]
    return (dx**2 + dy**2).sqrt().mean()


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, x):
        return x + self.net(x)


def get_data():
    g = torch.Generator().manual_seed(62)
    clean = torch.rand(128, 1, 12, 12, generator=g)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=g)
    clean[83] = noisy[83] = 0.0  # an empty tile
    return TensorDataset(noisy, clean)


def train(model, loader, epochs):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    skipped = 0
    for epoch in range(epochs):
        for noisy, clean in loader:
            out = model(noisy)
            loss = nn.functional.l1_loss(out, clean) + 0.02 * total_variation(out)
            if torch.isnan(loss):
                skipped += 1
                continue
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item(), skipped)


torch.manual_seed(1)
model = Denoiser()
train(model, DataLoader(get_data(), batch_size=16), 3)
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
