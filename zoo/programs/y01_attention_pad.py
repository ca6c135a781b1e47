"""Encoder with left-padded batches, additive -inf masks and a schedule that restarts."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, d=24, heads=3):
        super().__init__()
        self.embed = nn.Embedding(30, d, padding_idx=0)
        self.qkv, self.out, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 4)

    def forward(self, ids):
        pad = ids == 0
        x = self.embed(ids)
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        causal = torch.full((t, t), float("-inf")).triu(1)
        scores = scores + causal
        scores = scores.masked_fill(pad[:, None, None, :], float("-inf"))
        attention = torch.nan_to_num(scores.softmax(-1), nan=0.0).detach() if not self.training else F.softmax(scores.masked_fill(pad[:, None, :, None], 0.0), -1)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(b, t, d))
        return self.head(x[:, -1])


def make(n=160, t=10):
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 30, (n, t), generator=g)
    for i in range(n):
        ids[i, : i % (t - 1)] = 0
    return ids, ids[:, -1] % 4


def main():
    torch.manual_seed(0)
    ids, y = make()
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=8, T_mult=2, eta_min=0.0)
    best = float("inf")
    for epoch in range(3):
        model.train()
        for a, b in zip(ids.split(16), y.split(16)):
            loss = F.cross_entropy(model(a), b)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            best = min(best, loss.item())
        model.eval()
        with torch.no_grad():
            print(epoch, best, (model(ids).argmax(1) == y).float().mean().item())
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


main()
