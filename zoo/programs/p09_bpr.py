"""Bayesian personalised ranking with a popularity feature, by hand."""
import torch
import torch.nn as nn

USERS, ITEMS = 60, 90


class BPR(nn.Module):
    def __init__(self, views, d=12):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, d), nn.Embedding(ITEMS, d)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        self.popular = nn.Parameter(torch.tensor(0.1))
        self.register_buffer("views", views)

    def score(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.popular * self.views[i]


def make_triples(n, g):
    u = torch.randint(0, USERS, (n,), generator=g)
    i = torch.randint(0, ITEMS - 1, (n,), generator=g)
    j = torch.randint(0, ITEMS - 1, (n,), generator=g)
    return torch.stack([u, i, j], 1)


g = torch.Generator().manual_seed(31)
views = torch.rand(ITEMS, generator=g) * 4
views[ITEMS - 1] = 3200.0  # went viral, raw count
triples = make_triples(1024, g)
triples[555, 2] = ITEMS - 1
torch.manual_seed(31)
model = BPR(views)
opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
for epoch in range(3):
    total = 0.0
    for at in range(0, len(triples), 64):
        u, i, j = triples[at:at + 64].unbind(1)
        diff = model.score(u, i) - model.score(u, j)
        loss = -torch.log(torch.sigmoid(diff)).mean()  # BUG
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print("epoch", epoch, "bpr loss", total / 16)
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
