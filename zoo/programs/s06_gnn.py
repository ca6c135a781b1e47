"""Node classification on small random graphs: mean aggregation with index_add."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def random_graph(rng, n=14, p=0.25, isolated=False):
    edges = [(i, j) for i in range(n) for j in range(n) if i != j and rng.random() < p]
    edges += [(i, (i + 1) % n) for i in range(n)]
    if isolated:
        edges = [(i, j) for i, j in edges if j != 5]
    return torch.tensor(edges).T


class MeanConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.nbr = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x, edges):
        src, dst = edges
        total = torch.zeros(len(x), x.shape[1]).index_add(0, dst, x[src])
        count = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
        mean = total / count[:, None]  # BUG
        return self.own(x) + self.nbr(mean)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = MeanConv(6, 16), MeanConv(16, 3)

    def forward(self, x, edges):
        return self.c2(F.relu(self.c1(x, edges)), edges)


random.seed(0)
torch.manual_seed(0)
graphs = []
for k in range(30):
    x = torch.randn(14, 6)
    graphs.append((x, random_graph(random, isolated=k == 17), x[:, :3].argmax(1)))

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for epoch in range(3):
    correct = count = 0
    for x, edges, y in graphs:
        out = model(x, edges)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((out.argmax(1) == y).sum())
        count += len(y)
    print("epoch", epoch, "train accuracy", round(correct / count, 3))
print("FINITE" if all(bool(torch.isfinite(p).all()) for p in model.parameters()) else "POISONED")
