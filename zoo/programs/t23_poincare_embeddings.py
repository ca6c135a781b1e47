"""Poincare embeddings of a small hierarchy, with negative samples."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Edges(Dataset):
    def __init__(self, n=255):
        self.pairs = [(child, (child - 1) // 2) for child in range(1, n)]
        self.pairs[171] = (58, 58)  # an article that lists itself as its category
        self.n = n
        self.g = torch.Generator().manual_seed(26)
        self.negatives = torch.randint(0, n, (len(self.pairs), 5), generator=self.g)
        for i, (a, _) in enumerate(self.pairs):
            self.negatives[i][self.negatives[i] == a] = (a + 7) % n

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        a, b = self.pairs[i]
        return torch.tensor(a), torch.tensor(b), self.negatives[i]


class Ball(nn.Module):
    def __init__(self, n, d=5):
        super().__init__()
        self.points = nn.Embedding(n, d)
        nn.init.uniform_(self.points.weight, -0.01, 0.01)

    def distance(self, u, v):
        gap = (u - v).pow(2).sum(-1)
        edge = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
        return torch.acosh(1 + 2 * gap / edge)

    def forward(self, a, b, neg):
        u = self.points(a)
        near = self.distance(u, self.points(b))
        far = self.distance(u[:, None], self.points(neg))
        return -torch.cat([near[:, None], far], 1)


def train(lr=0.05, epochs=4):
    torch.manual_seed(2)
    edges = Edges()
    ball = Ball(edges.n)
    opt = torch.optim.Adagrad(ball.parameters(), lr=lr)
    for epoch in range(epochs):
        total = 0.0
        for a, b, neg in DataLoader(edges, batch_size=20):
            scores = ball(a, b, neg)
            loss = nn.functional.cross_entropy(scores, torch.zeros(len(a), dtype=torch.long))
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                ball.points.weight.copy_(torch.renorm(ball.points.weight, 2, 0, 0.95))
            total += loss.item()
        print(epoch, total)
    return ball


b = train()
print("FINITE" if all(torch.isfinite(p).all() for p in b.parameters()) else "POISONED")
