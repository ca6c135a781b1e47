"""SimCLR on bags of words: unit vectors by hand, NT-Xent."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def corpus(n=256, words=40, seed=9):
    rs = np.random.RandomState(seed)
    docs = rs.poisson(0.5, size=(n, words)).astype("float32")
    docs[:, 0] += 1
    docs[202] = 0.0  # an empty document
    return torch.from_numpy(docs)


class Encoder(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.project = nn.Linear(words, dim, bias=False)
        self.head = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        z = self.head(torch.relu(self.project(x)))
        return z / z.norm(dim=1, keepdim=True)  # BUG


def nt_xent(a, b, tau=0.2):
    z = torch.cat([a, b])
    sim = z @ z.T / tau
    sim.fill_diagonal_(float("-inf"))
    n = len(a)
    target = torch.cat([torch.arange(n) + n, torch.arange(n)])
    return nn.functional.cross_entropy(sim, target)


def augment(x, g):
    return x * (torch.rand(x.shape, generator=g) < 0.8)


def train(epochs=3):
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(2)
    model = Encoder(40, 16)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(corpus()), batch_size=32, shuffle=False)
    for epoch in range(epochs):
        losses = []
        for (x,) in loader:
            loss = nt_xent(model(augment(x, g)), model(augment(x, g)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print("epoch", epoch, "mean loss", np.mean(losses))
    return model


if __name__ == "__main__":
    m = train()
    print("FINITE" if all(torch.isfinite(p).all().item() for p in m.parameters()) else "POISONED")
