"""Next-item recommender: sampled softmax with log-Q correction and gradient accumulation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

ITEMS, USERS, DIM, NEGATIVES = 300, 100, 16, 20
ACCUMULATE = 2


def interactions(n=1200):
    g = torch.Generator().manual_seed(40)
    user = torch.randint(0, USERS, (n,), generator=g)
    item = (user * 3 + torch.randint(0, 40, (n,), generator=g)) % (ITEMS - 1)  # item 299 was never bought
    return user, item


class TwoTower(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.register_buffer("q", counts / counts.sum())

    def score(self, user, item):
        return (self.proj(self.user(user)).unsqueeze(1) * self.item(item)).sum(-1)

    def loss(self, user, positive, negatives):
        candidates = torch.cat([positive.unsqueeze(1), negatives.expand(len(user), -1)], dim=1)
        logits = self.score(user, candidates)
        correction = torch.log(self.q[candidates])
        logits = logits - correction
        return F.cross_entropy(logits, torch.zeros(len(user), dtype=torch.long))


class Sampler:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def negatives(self):
        return torch.randint(0, ITEMS, (1, NEGATIVES), generator=self.g)


def train(epochs=1, batch=20):
    torch.manual_seed(2)
    user, item = interactions()
    counts = torch.bincount(item, minlength=ITEMS).float()
    model = TwoTower(counts)
    sampler = Sampler(7)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    micro = 0
    for epoch in range(epochs):
        for start in range(0, len(user), batch):
            u, i = user[start : start + batch], item[start : start + batch]
            loss = model.loss(u, i, sampler.negatives()) / ACCUMULATE
            loss.backward()
            micro += 1
            if micro % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
            if micro % 10 == 0:
                print(f"micro {micro} loss {loss.item() * ACCUMULATE:.4f}")
    return model


if __name__ == "__main__":
    model = train()
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
