"""A GPT with a Trainer class in the manner of minGPT; padding masks a whole row of attention."""
# ruff: noqa: RUF059
# truth: op=softmax|_softmax cause=DX206 samples=33

import time
from collections import defaultdict

import torch
import torch.nn as nn
from torch.nn import functional as F
from torch.utils.data.dataloader import DataLoader


class Block(nn.Module):
    def __init__(self, n=12):
        super().__init__()
        self.attn, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.ln = nn.LayerNorm(n)

    def forward(self, x, pad):
        q, k, v = self.attn(self.ln(x)).split(x.size(-1), dim=2)
        att = (q @ k.transpose(-2, -1)) / k.size(-1) ** 0.5
        T = x.size(1)
        att = att.masked_fill(torch.triu(torch.ones(T, T), 1).bool(), float("-inf"))
        att = att.masked_fill(pad[:, None, :], float("-inf"))
        att = F.softmax(att, dim=-1)  # BUG
        return x + self.proj(att @ v)


class GPT(nn.Module):
    def __init__(self, vocab=11):
        super().__init__()
        self.wte = nn.Embedding(vocab, 12)
        self.block = Block()
        self.head = nn.Linear(12, vocab)

    def forward(self, idx, targets=None):
        x = self.block(self.wte(idx), idx == 0)
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Trainer:
    def __init__(self, model, train_dataset, max_iters=24):
        self.model, self.train_dataset, self.max_iters = model, train_dataset, max_iters
        self.optimizer = None
        self.callbacks = defaultdict(list)
        self.device = "cpu"
        self.iter_num, self.iter_time, self.iter_dt = 0, 0.0, 0.0

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        model = self.model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        train_loader = DataLoader(
            self.train_dataset,
            sampler=torch.utils.data.RandomSampler(self.train_dataset, replacement=False),
            shuffle=False,
            batch_size=8,
            num_workers=0,
        )
        model.train()
        self.iter_num = 0
        self.iter_time = time.time()
        data_iter = iter(train_loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(train_loader)
                batch = next(data_iter)
            batch = [t.to(self.device) for t in batch]
            x, y = batch
            logits, self.loss = model(x, y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            tnow = time.time()
            self.iter_dt = tnow - self.iter_time
            self.iter_time = tnow
            if self.iter_num >= self.max_iters:
                break


torch.manual_seed(0)
tokens = torch.randint(1, 11, (64, 7))
tokens[33, 0] = 0
dataset = [(t[:-1], t[1:]) for t in tokens]
model = GPT()
trainer = Trainer(model, dataset)
trainer.add_callback(
    "on_batch_end", lambda t: t.iter_num % 8 == 0 and print(f"iter {t.iter_num}: train loss {t.loss.item():.5f}")
)
trainer.run()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
