"""Discrete autoencoder with Gumbel-softmax; the temperature goes down linearly with the epochs."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Discrete(nn.Module):
    def __init__(self, d=20, slots=4, k=6):
        super().__init__()
        self.slots, self.k = slots, k
        self.enc = nn.Linear(d, slots * k)
        self.dec = nn.Linear(slots * k, d)

    def forward(self, x, tau):
        logits = self.enc(x).view(-1, self.slots, self.k)
        z = F.gumbel_softmax(logits, tau=tau)
        return self.dec(z.flatten(1))


def temperature(epoch, start=1.0, rate=0.25):
    return start - rate * epoch


def main(epochs=6):
    torch.manual_seed(12)
    x = torch.randn(320, 20, generator=torch.Generator().manual_seed(1)).sign()
    model = Discrete()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        tau = temperature(epoch)
        for xb in x.split(32):
            loss = F.mse_loss(model(xb, tau), xb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} tau {tau} loss {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
