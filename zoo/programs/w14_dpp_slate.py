"""Slate recommendation: relevance plus a determinantal diversity term."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ITEMS, SLATE = 200, 5


class Tower(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.user = nn.Linear(10, d)
        self.item = nn.Embedding(ITEMS, d)

    def forward(self, users, slates):
        items = self.item(slates)
        return torch.einsum("bd,bsd->bs", self.user(users), items), items


def diversity(items):
    v = F.normalize(items, dim=-1)
    kernel = v @ v.transpose(1, 2)
    return torch.logdet(kernel)


def make_logs(n=960):
    g = torch.Generator().manual_seed(23)
    users = torch.randn(n, 10, generator=g)
    slates = torch.stack([torch.randperm(ITEMS, generator=g)[:SLATE] for _ in range(n)])
    clicks = (torch.rand(n, SLATE, generator=g) < 0.3).float()
    slates[703, 4] = slates[703, 0]  # the same product listed twice
    return users, slates, clicks


def main():
    torch.manual_seed(0)
    users, slates, clicks = make_logs()
    model = Tower()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(3):
        order = torch.randperm(len(users))
        running = 0.0
        for start in range(0, len(order), 32):
            rows = order[start:start + 32]
            scores, items = model(users[rows], slates[rows])
            loss = F.binary_cross_entropy_with_logits(scores, clicks[rows]) - 0.01 * diversity(items).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}: {running / 30:.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
