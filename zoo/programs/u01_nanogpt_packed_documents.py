"""Character-level GPT, trained the nanoGPT way: get_batch, micro steps, cosine rate, clipping; the loss is averaged per document."""
import math

import torch
import torch.nn as nn
from torch.nn import functional as F

block_size, n_embd, vocab = 24, 32, 40
batch_size, accumulation, max_iters = 8, 2, 40
warmup, min_lr, base_lr = 5, 1e-4, 3e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if targets is None:
            return logits, None
        nll = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-1, reduction="none")
        keep = (targets != -1).float()
        per_document = nll.sum(1) / keep.sum(1)
        return logits, per_document.mean()


def load_documents():
    g = torch.Generator().manual_seed(1337)
    docs = []
    for i in range(200):
        n = int(torch.randint(6, block_size + 1, (1,), generator=g))
        docs.append(torch.randint(0, vocab, (n,), generator=g))
    docs[57] = docs[57][:1]  # a document of one character has nothing to predict
    return docs


docs = load_documents()
rng = torch.Generator().manual_seed(1)


def get_batch():
    ix = torch.randint(len(docs), (batch_size,), generator=rng)
    x = torch.zeros(batch_size, block_size, dtype=torch.long)
    y = torch.full((batch_size, block_size), -1)
    for row, i in enumerate(ix.tolist()):
        d = docs[i]
        x[row, : len(d)] = d
        y[row, : len(d) - 1] = d[1:]
    return x, y


def get_lr(it):
    if it < warmup:
        return base_lr * (it + 1) / warmup
    ratio = (it - warmup) / (max_iters - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (base_lr - min_lr)


torch.manual_seed(1337)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=base_lr, betas=(0.9, 0.95), weight_decay=0.1)
for it in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    for micro in range(accumulation):
        X, Y = get_batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, loss = model(X, Y)
            loss = loss / accumulation
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 10 == 0:
        print(f"iter {it}: loss {loss.item() * accumulation:.4f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
