"""Sequence-to-sequence with additive attention and padding masks."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD, BOS, V = 0, 1, 20


def make_pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(n):
        k = int(torch.randint(2, 8, (1,), generator=g))
        src = torch.randint(2, V, (k,), generator=g)
        pairs.append((src, src.flip(0)))
    pairs[137] = (torch.zeros(3, dtype=torch.long), pairs[137][1])  # an empty line of the corpus became nothing but padding
    return pairs


def collate(items):
    src, tgt = zip(*items)
    return pad_sequence(src, batch_first=True), pad_sequence(tgt, batch_first=True)


class Attn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Linear(2 * d, d)
        self.v = nn.Linear(d, 1, bias=False)

    def forward(self, query, memory, mask):
        q = query[:, None].expand(-1, memory.shape[1], -1)
        score = self.v(torch.tanh(self.w(torch.cat([q, memory], -1)))).squeeze(-1)
        score = score.masked_fill(mask, float("-inf"))
        return torch.bmm(F.softmax(score, -1)[:, None], memory).squeeze(1)  # BUG


class Seq2Seq(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.emb = nn.Embedding(V, d, padding_idx=PAD)
        self.enc = nn.GRU(d, d, batch_first=True)
        self.dec = nn.GRUCell(2 * d, d)
        self.attn = Attn(d)
        self.out = nn.Linear(d, V)

    def forward(self, src, tgt):
        memory, h = self.enc(self.emb(src))
        h, mask, logits = h[0], src == PAD, []
        prev = torch.full((len(src),), BOS)
        for t in range(tgt.shape[1]):
            ctx = self.attn(h, memory, mask)
            h = self.dec(torch.cat([self.emb(prev), ctx], -1), h)
            logits.append(self.out(h))
            prev = tgt[:, t]
        return torch.stack(logits, 1)


torch.manual_seed(2)
model = Seq2Seq()
optim = torch.optim.Adam(model.parameters(), 3e-3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
for epoch in range(2):
    running = 0.0
    for src, tgt in DataLoader(make_pairs(240, 4), batch_size=12, collate_fn=collate):
        optim.zero_grad()
        loss = criterion(model(src, tgt).flatten(0, 1), tgt.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        running += loss.item()
    print(f"epoch {epoch}: {running / 20:.3f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
