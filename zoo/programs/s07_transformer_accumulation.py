"""Prompt tuning of a small transformer with gradient accumulation: loss only on the answer tokens."""
import math

import torch
import torch.nn as nn

torch.manual_seed(21)
VOCAB, CTX, ACCUM = 30, 12, 4


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        a = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        a = a.masked_fill(torch.ones(a.shape[-2:]).triu(1).bool(), -1e9).softmax(-1)
        x = x + self.proj(a @ v)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(CTX, d)
        self.blocks = nn.Sequential(Block(d), Block(d))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids) + self.pos.weight[: ids.shape[1]]))


def micro_batches(n):
    for k in range(n):
        ids = torch.randint(0, VOCAB, (4, CTX))
        ids[:, 6:] = ids[:, :6]
        prompt_len = torch.full((4,), 6)
        if k == 50:
            prompt_len[:] = CTX  # prompts so long that the answers were cut off
        answer = torch.arange(CTX)[None] >= prompt_len[:, None]
        yield ids, answer


model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
log = []
opt.zero_grad()
for k, (ids, answer) in enumerate(micro_batches(120)):
    logp = torch.log_softmax(model(ids)[:, :-1], -1)
    token_nll = -logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    keep = answer[:, 1:]
    loss = token_nll[keep].mean() / ACCUM  # BUG
    loss.backward()
    log.append(loss.item() * ACCUM)
    if (k + 1) % ACCUM == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
    if k % 40 == 39:
        print("micro batch", k, "loss", sum(log[-8:]) / 8)
print("FINITE" if all(p.isfinite().all() for p in model.parameters()) else "POISONED")
