"""Small VQ autoencoder; the codebook follows the mean of its assigned vectors."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Quantizer(nn.Module):
    def __init__(self, codes=4, d=2):
        super().__init__()
        self.register_buffer("codebook", torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]]))
        self.rate = 0.05

    def forward(self, z):
        index = torch.cdist(z, self.codebook).argmin(-1)
        q = self.codebook[index]
        if self.training:
            with torch.no_grad():
                onehot = F.one_hot(index, len(self.codebook)).float()
                means = onehot.T @ z / onehot.sum(0)[:, None]
                self.codebook.lerp_(means, self.rate)
        return z + (q - z).detach(), F.mse_loss(z, q)


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)
        self.quantizer = Quantizer()
        self.decoder = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        with torch.no_grad():
            self.encoder.weight.copy_(torch.eye(2))
            self.encoder.bias.zero_()

    def forward(self, x):
        z, commit = self.quantizer(self.encoder(x))
        return F.mse_loss(self.decoder(z), x) + 0.25 * commit


def blobs(n=3840):
    g = torch.Generator().manual_seed(19)
    centre = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]])
    which = torch.randint(0, 4, (n,), generator=g)
    which[32 * 70:32 * 71] = torch.randint(0, 3, (32,), generator=g)  # that hour one machine stood still
    return centre[which] + 0.2 * torch.randn(n, 2, generator=g)


def main():
    torch.manual_seed(0)
    model = VQ()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (x,) in enumerate(DataLoader(TensorDataset(blobs()), batch_size=32)):
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
