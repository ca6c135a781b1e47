"""Attention over ragged sequences with -inf masks; sequences of length one, and queries that are padding themselves."""
import hashlib
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Ragged(Dataset):
    def __init__(self, n=200):
        g = torch.Generator().manual_seed(3)
        self.rows = []
        for _ in range(n):
            t = int(torch.randint(1, 12, (1,), generator=g))
            x = torch.randn(t, 6, generator=g)
            self.rows.append((x, x[:, 0].max()))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    width = max(len(x) for x, _ in rows) + 2
    out = torch.full((len(rows), width, 6), float("nan"))  # so that a read of the padding would show
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    for k, (x, _) in enumerate(rows):
        out[k, :len(x)], valid[k, :len(x)] = x, True
    return out, valid, torch.stack([y for _, y in rows])


class Net(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.inp, self.qkv, self.out = nn.Linear(6, d), nn.Linear(d, 3 * d), nn.Linear(d, 1)

    def forward(self, x, valid):
        x = torch.where(valid[..., None], x, torch.zeros(()))
        q, k, v = self.qkv(torch.relu(self.inp(x))).chunk(3, -1)
        a = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        h = a.masked_fill(~valid[:, None], -math.inf).softmax(-1) @ v
        h = h.masked_fill(~valid[..., None], -math.inf).amax(1)
        return self.out(h).squeeze(1)


torch.manual_seed(4)
net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for epoch in range(4):
    for x, valid, y in DataLoader(Ragged(), batch_size=8, collate_fn=pad):
        loss = (net(x, valid) - y).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, round(loss.item(), 4))
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
