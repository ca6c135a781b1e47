"""Character model with additive -inf mask, left padding with a diagonal escape, ignored labels."""
import hashlib
import torch
from torch import nn
import torch.nn.functional as F

V, T, D = 30, 12, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        a = q @ k.transpose(1, 2) / D ** 0.5 + mask
        x = x + self.o(a.softmax(-1) @ v)
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        pad = ids == 0
        mask = torch.full((T, T), float("-inf")).triu(1).expand(len(ids), T, T).clone()
        mask = mask.masked_fill(pad[:, None, :], float("-inf"))
        eye = torch.eye(T, dtype=torch.bool)
        mask = mask.masked_fill(eye, 0.0)  # a position always sees itself
        x = self.tok(ids) + self.pos.weight
        for b in self.blocks:
            x = b(x, mask)
        return self.head(x)


torch.manual_seed(1)
model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(90):
    start = torch.randint(1, V, (16, 1))
    ids = (start + torch.arange(T + 1) * 2) % (V - 1) + 1
    for r in range(16):
        ids[r, : torch.randint(0, 6, (1,)).item()] = 0
    labels = ids[:, 1:].masked_fill(ids[:, :-1] == 0, -100)
    loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), labels, ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0:
        print(step, f"{loss.item():.4f}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())
