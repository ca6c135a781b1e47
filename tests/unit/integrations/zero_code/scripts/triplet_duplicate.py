"""Triplets: the anchor of triplet 26 is its own positive, so the distance is zero."""
# truth: op=sqrt|pow cause=DX301 samples=26

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Triplets(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.a, self.p, self.n = torch.randn(3, 60, 5, generator=g)
        self.p[26] = self.a[26]

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return self.a[i], self.p[i], self.n[i]


def distance(u, v):
    return (u - v).pow(2).sum(1).pow(0.5)  # BUG


class Trainer:
    def __init__(self, net, lr=1e-3):
        self.net, self.margin = net, 0.5
        self.optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        self.seen = 0

    def training_step(self, batch):
        a, p, n = batch
        ea, ep, en = self.net(a), self.net(p), self.net(n)
        self.seen += len(a)
        return torch.relu(distance(ea, ep) - distance(ea, en) + self.margin).mean()

    def fit(self, loader, epochs):
        for _ in range(epochs):
            for batch in loader:
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                self.optimizer.step()
        return self.seen


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))
trainer = Trainer(net)
print("samples seen:", trainer.fit(DataLoader(Triplets(), batch_size=6, shuffle=True), epochs=2))
print("weights finite:", all(p.isfinite().all().item() for p in net.parameters()))
