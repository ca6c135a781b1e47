"""Recommender with sparse embeddings: SparseAdam for the tables, Adam for the rest, angular loss."""
import torch
import torch.nn as nn

USERS, ITEMS, DIM = 50, 80, 8


class Angular(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM, sparse=True)
        self.items = nn.Embedding(ITEMS, DIM, sparse=True)
        self.scale = nn.Linear(1, 1)

    def cosine(self, u, i):
        a, b = self.users(u), self.items(i)
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1) + 1e-8)

    def forward(self, u, i):
        cos = self.cosine(u, i).clamp(-1, 1)
        angle = torch.acos(cos)  # BUG
        return self.scale(angle[:, None]).squeeze(1)


def log_of_clicks(n=640):
    g = torch.Generator().manual_seed(23)
    u = torch.randint(0, USERS, (n,), generator=g)
    i = torch.randint(0, ITEMS - 1, (n,), generator=g)
    y = ((u + i) % 3 == 0).float()
    u[407], i[407], y[407] = 7, ITEMS - 1, 1.0
    return u, i, y


def steps(u, i, y, size):
    for k in range(0, len(u), size):
        yield u[k:k + size], i[k:k + size], y[k:k + size]


torch.manual_seed(2)
model = Angular()
sparse_opt = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=1e-2)
dense_opt = torch.optim.Adam(model.scale.parameters(), lr=1e-2)
criterion = nn.BCEWithLogitsLoss()
u, i, y = log_of_clicks()
for n, (ub, ib, yb) in enumerate(steps(u, i, y, 16)):
    if n == 25:  # a cold item starts as a copy of the only user who clicked on it
        with torch.no_grad():
            one_hot = torch.zeros(DIM)
            one_hot[3] = 2.0
            model.users.weight[7] = one_hot
            model.items.weight[ITEMS - 1] = one_hot
    loss = criterion(model(ub, ib), yb)
    for o in (sparse_opt, dense_opt):
        o.zero_grad()
    loss.backward()
    for o in (sparse_opt, dense_opt):
        o.step()
    if n % 10 == 0:
        print("batch", n, "loss", round(loss.item(), 4))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
