"""VAE on spectra, Trainer class."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, d=40, z=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, z), nn.Linear(64, z)
        self.decoder = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(0.5 * logvar)
        z = mu + std * torch.randn_like(std)
        return self.decoder(z), mu, logvar


class Trainer:
    def __init__(self, model, loader, lr, beta):
        self.model, self.loader, self.beta = model, loader, beta
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.history = []

    def loss(self, x):
        recon, mu, logvar = self.model(x)
        rec = F.mse_loss(recon, x, reduction="none").sum(-1)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1)
        return (rec + self.beta * kl).mean()

    def fit(self, epochs):
        for epoch in range(epochs):
            for (x,) in self.loader:
                loss = self.loss(x)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.history.append(loss.item())
            print(f"epoch {epoch}: {sum(self.history[-len(self.loader):]) / len(self.loader):.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--beta", type=float, default=0.1)
    a = p.parse_args()
    torch.manual_seed(4)
    grid = torch.linspace(0, 1, 40)
    centre, width = torch.rand(900, 1), 0.05 + 0.1 * torch.rand(900, 1)
    spectra = torch.exp(-((grid - centre) / width) ** 2) + 0.02 * torch.randn(900, 40)
    spectra[612] *= 40000.0  # counts, not normalised
    trainer = Trainer(VAE(), DataLoader(TensorDataset(spectra), batch_size=30, shuffle=True), 1e-3, a.beta)
    trainer.fit(a.epochs)
    print("FINITE" if all(torch.isfinite(t).all() for t in trainer.model.state_dict().values()) else "POISONED")
