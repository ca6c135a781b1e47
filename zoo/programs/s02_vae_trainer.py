"""VAE on sensor vectors, Trainer class."""
import torch
from torch import nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, d=10, h=32, z=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU())
        self.mu = nn.Linear(h, z)
        self.logvar = nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d))

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)  # BUG

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(self.reparameterize(mu, logvar)), mu, logvar


def elbo(recon, x, mu, logvar):
    rec = F.mse_loss(recon, x)
    kl = -0.5 * torch.mean(1 + logvar - mu.pow(2) - torch.exp(logvar))
    return rec + 1e-3 * kl


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.history = []

    def batches(self, data, size):
        for start in range(0, len(data), size):
            yield data[start:start + size]

    def fit(self, data, epochs, size=16):
        for epoch in range(epochs):
            for batch in self.batches(data, size):
                recon, mu, logvar = self.model(batch)
                loss = elbo(recon, batch, mu, logvar)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.history.append(loss.item())
            print("epoch", epoch, "loss", sum(self.history[-10:]) / 10)


torch.manual_seed(3)
data = torch.randn(320, 10)
data[171] = data[171].abs() * 120  # a sensor that reports millivolts instead of volts
model = VAE()
with torch.no_grad():
    model.logvar.weight.abs_().mul_(4)
trainer = Trainer(model, lr=0.02)
trainer.fit(data, epochs=3)
bad = [n for n, p in model.named_parameters() if not torch.isfinite(p).all()]
print("POISONED" if bad else "FINITE")
