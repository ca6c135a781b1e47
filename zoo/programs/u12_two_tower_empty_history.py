"""Two-tower recommender; a user is the sum of the items of his history, scores are cosines."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Histories(Dataset):
    def __init__(self, users=240, items=80):
        g = torch.Generator().manual_seed(41)
        self.history = [torch.randint(1, items, (int(torch.randint(1, 7, (1,), generator=g)),), generator=g) for _ in range(users)]
        self.history[150] = self.history[150][:0]  # a new user
        self.clicked = torch.randint(1, items, (users,), generator=g)

    def __len__(self):
        return len(self.history)

    def __getitem__(self, i):
        return self.history[i], self.clicked[i]


def collate(rows):
    n = max(max(len(h) for h, _ in rows), 1)
    out = torch.zeros(len(rows), n, dtype=torch.long)
    for k, (h, _) in enumerate(rows):
        out[k, : len(h)] = h
    return out, torch.stack([c for _, c in rows])


class TwoTower(nn.Module):
    def __init__(self, items=80, d=16):
        super().__init__()
        self.item = nn.Embedding(items, d, padding_idx=0)
        self.project = nn.Linear(d, d, bias=False)

    @staticmethod
    def unit(v):
        length = v.norm(dim=-1, keepdim=True)
        return v / length

    def forward(self, history, clicked):
        user = self.project(self.item(history).sum(1))
        return self.unit(user) @ self.unit(self.item(clicked)).t()


def step(model, batch, temperature=0.1):
    scores = model(*batch) / temperature
    return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


torch.manual_seed(2)
model = TwoTower()
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
loader = DataLoader(Histories(), batch_size=20, collate_fn=collate, shuffle=True, generator=torch.Generator().manual_seed(7))
for epoch in range(3):
    losses = []
    for batch in loader:
        opt.zero_grad()
        loss = step(model, batch)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    print(epoch, torch.stack(losses).mean().item())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
