"""Curriculum over arithmetic strings: every stage makes the data harder at once and the loss jumps, as planned."""
import hashlib

import torch
import torch.nn as nn

torch.manual_seed(4)
PAD, PLUS, EQ = 10, 11, 12


def problems(digits, n, g):
    hi = 10 ** digits
    a, b = torch.randint(0, hi, (n,), generator=g), torch.randint(0, hi, (n,), generator=g)
    rows = []
    for x, y in zip(a.tolist(), b.tolist()):
        text = f"{x}+{y}="
        ids = [PLUS if c == "+" else EQ if c == "=" else int(c) for c in text]
        rows.append(ids + [PAD] * (2 * 4 + 2 - len(ids)))
    return torch.tensor(rows), (a + b) % 10


class Adder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(13, d)
        self.pos = nn.Parameter(torch.randn(10, d) * 0.1)
        self.enc = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, 10)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids) + self.pos, src_key_padding_mask=ids == PAD).masked_fill((ids == PAD)[..., None], 0.0).sum(1) / 4)


model = Adder()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
g = torch.Generator().manual_seed(8)
for stage, (digits, steps) in enumerate([(1, 120), (2, 60), (4, 60)]):
    first = last = None
    for k in range(steps):
        ids, y = problems(digits, 24, g)
        loss = nn.functional.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        first, last = (loss.item() if first is None else first), loss.item()
    print(f"stage {stage}: {digits} digits, loss {first:.3f} -> {last:.3f}")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
