"""Graph classification, mean aggregation by index_add; graphs are joined in the collate function."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(21)
        self.items = []
        for i in range(n):
            nodes = int(torch.randint(5, 12, (1,), generator=g))
            ring = torch.arange(nodes)
            extra = torch.randint(0, nodes, (2, nodes), generator=g)
            edges = torch.cat([torch.stack([ring, ring.roll(1)]), extra], 1)
            if i == 97:
                edges = edges[:, (edges != 3).all(0)]  # node 3 lost its edges when duplicates were removed
            self.items.append((torch.randn(nodes, 8, generator=g), edges, torch.tensor(i % 2)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    xs, edges, owner, labels, base = [], [], [], [], 0
    for k, (x, e, y) in enumerate(items):
        xs.append(x)
        edges.append(e + base)
        owner.append(torch.full((len(x),), k))
        labels.append(y)
        base += len(x)
    return torch.cat(xs), torch.cat(edges, 1), torch.cat(owner), torch.stack(labels)


class MeanConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.other = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, edges):
        src, dst = edges
        total = torch.zeros_like(x).index_add_(0, dst, x[src])
        degree = torch.zeros(len(x)).index_add_(0, dst, torch.ones(len(dst)))
        mean = total / degree.unsqueeze(1)
        return self.own(x) + self.other(mean)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = MeanConv(8, 24), MeanConv(24, 24), nn.Linear(24, 2)

    def forward(self, x, edges, owner, count):
        h = torch.relu(self.a(x, edges))
        h = torch.relu(self.b(h, edges))
        pooled = torch.zeros(count, h.shape[1]).index_add_(0, owner, h)
        return self.out(pooled)


def fit(net, loader, epochs=3):
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)
    for epoch in range(epochs):
        for x, edges, owner, y in loader:
            loss = nn.functional.cross_entropy(net(x, edges, owner, len(y)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} {loss.item():.3f}")


torch.manual_seed(0)
net = Net()
fit(net, DataLoader(Graphs(), batch_size=16, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(3)))
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
