"""VAE over sensor readings, compiled; one sensor sent raw counts."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, d=20, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 40), nn.ReLU())
        self.mu, self.logvar = nn.Linear(40, z), nn.Linear(40, z)
        self.dec = nn.Sequential(nn.Linear(z, 40), nn.ReLU(), nn.Linear(40, d))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        std = (0.5 * logvar).exp()
        z = mu + std * torch.randn_like(std)
        recon = self.dec(z)
        kl = -0.5 * (1 + logvar - mu.pow(2) - std.pow(2)).sum(1)
        return recon, kl


def elbo(recon, x, kl, beta):
    return (F.smooth_l1_loss(recon, x, reduction="none").sum(1) + beta * kl).mean()


def train(epochs=3):
    torch.manual_seed(12)
    data = torch.randn(320, 20, generator=torch.Generator().manual_seed(0))
    data[201] = data[201].abs() * 4095
    model = VAE()
    compiled = torch.compile(model, backend="aot_eager")
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.7)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=32)
    for epoch in range(epochs):
        beta = min(1.0, (epoch + 1) / 2)
        for (x,) in loader:
            recon, kl = compiled(x)
            loss = elbo(recon, x, kl, beta)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        print(epoch, loss.item())
    return model


model = train()
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
