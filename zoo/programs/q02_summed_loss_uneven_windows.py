"""Summed losses of documents of very different length; an update whenever 2000 tokens have been seen, whatever number of documents that takes."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def documents(n=150):
    g = torch.Generator().manual_seed(8)
    for _ in range(n):
        length = int(torch.empty(1).log_normal_(5, 1.2, generator=g).clamp(4, 3000))
        start = torch.randint(0, 20, (1,), generator=g)
        yield (start + torch.arange(length) * torch.randint(1, 4, (1,), generator=g)) % 20


torch.manual_seed(8)
model = nn.Sequential(nn.Embedding(20, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 20))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
seen, updates, worst = 0, 0, 0.0
opt.zero_grad()
for doc in documents():
    loss = F.cross_entropy(model(doc[:-1]), doc[1:], reduction="sum")
    loss.backward()
    worst = max(worst, loss.item())
    seen += len(doc) - 1
    if seen >= 2000:
        opt.step()
        opt.zero_grad()
        updates, seen = updates + 1, 0
if seen:
    opt.step()
print("updates", updates, "largest loss", round(worst, 1), "last", round(loss.item() / (len(doc) - 1), 4))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
