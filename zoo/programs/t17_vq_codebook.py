"""VQ autoencoder; the codebook is not trained by gradient but by moving averages of what falls into each cell."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Quantizer(nn.Module):
    def __init__(self, k, d, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("book", torch.randn(k, d))
        self.register_buffer("size", torch.zeros(k))
        self.register_buffer("total", torch.zeros(k, d))

    def forward(self, z):
        dist = (z[:, None] - self.book[None]).pow(2).sum(2)
        idx = dist.argmin(1)
        q = self.book[idx]
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(idx, len(self.book)).float()
                self.size.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.total.mul_(self.decay).add_(hot.t() @ z, alpha=1 - self.decay)
                self.book.copy_(self.total / self.size.unsqueeze(1))
        return z + (q - z).detach(), F.mse_loss(z, q.detach())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 6))
        self.vq = Quantizer(24, 6)
        self.dec = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        q, commit = self.vq(self.enc(x))
        return self.dec(q), commit


def train():
    torch.manual_seed(9)
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    x = torch.randn(600, 16, generator=torch.Generator().manual_seed(4))
    for epoch in range(3):
        for xb in torch.split(x, 50):
            out, commit = model(xb)
            loss = F.mse_loss(out, xb) + 0.25 * commit
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())
    return model


m = train()
print("FINITE" if all(torch.isfinite(t).all() for t in m.parameters()) else "POISONED")
