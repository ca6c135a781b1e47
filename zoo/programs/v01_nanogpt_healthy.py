"""A small GPT: causal mask of -inf, accumulation, bf16 autocast, cosine rate, weight average, dropout."""
import copy
import hashlib
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, C, V, ITERS = 6, 16, 32, 30, 30


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Dropout(0.1)
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        att = (q @ k.transpose(1, 2) / math.sqrt(C) + self.mask).softmax(-1)
        return self.out(self.drop(att) @ v)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, C), nn.Parameter(torch.zeros(T, C))
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(C), Attention(), nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)]) for _ in range(2))
        self.head = nn.Linear(C, V, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, x):
        h = self.tok(x) + self.pos
        for n1, att, n2, up, down in self.layers:
            h = h + att(n1(h))
            h = h + down(F.gelu(up(n2(h))))
        return self.head(h)


def batches(seed):
    g = torch.Generator().manual_seed(seed)
    text = torch.randint(0, V, (4000,), generator=g)
    while True:
        at = torch.randint(0, len(text) - T - 1, (B,), generator=g)
        yield torch.stack([text[i : i + T] for i in at]), torch.stack([text[i + 1 : i + T + 1] for i in at])


def main():
    torch.manual_seed(0)
    model = GPT()
    average = copy.deepcopy(model)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
    stream, best = batches(1), float("inf")
    for it in range(ITERS):
        rate = 1e-3 * min(1, (it + 1) / 5) * 0.5 * (1 + math.cos(math.pi * it / ITERS))
        for group in opt.param_groups:
            group["lr"] = rate
        total = 0.0
        for _ in range(3):
            x, y = next(stream)
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 3
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.05)
        best = min(best, total)
    print(best)
    params = [*model.parameters(), *average.parameters()]
    print("FINITE" if all(torch.isfinite(p).all() for p in params) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in params)).hexdigest())


main()
