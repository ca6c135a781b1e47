"""Pre-train in fp32, then fine-tune in half precision to save memory."""

import torch
from torch import nn
import torch.nn.functional as F

VOCAB, DIM = 64, 16


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.head = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


def sample(g, vocab):
    ids = torch.randint(0, vocab, (16, 6), generator=g)
    return ids, ids.sum(1) % 3


def run(model, optimizer, steps, vocab, g, tag):
    for step in range(steps):
        ids, y = sample(g, vocab)
        loss = F.cross_entropy(model(ids).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{tag} {step} {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = Bag()
    run(model, torch.optim.Adam(model.parameters(), lr=1e-3), 60, VOCAB, g, "pretrain")
    model.half()
    run(model, torch.optim.Adam(model.parameters(), lr=1e-4), 40, VOCAB // 2, g, "finetune")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
