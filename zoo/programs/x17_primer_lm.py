"""Character model with squared ReLU (Primer) in fp16 autocast."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class FeedForward(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        h = F.relu(self.up(x))
        h = h * h
        return self.down(h)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mix = nn.Linear(d, d)
        self.ff = FeedForward(d)

    def forward(self, x):
        shifted = F.pad(x, (0, 0, 1, 0))[:, :-1]
        x = x + self.mix(self.norm(shifted))
        return x + self.ff(x)


class CharModel(nn.Module):
    def __init__(self, vocab=40, d=24, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--amp", choices=["fp16", "bf16", "none"], default="fp16")
    return p.parse_args([])


def main(args):
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(10)
    text = torch.randint(1, 39, (128, 17), generator=g)
    text[:, 1::2] = (text[:, 0:-1:2] + 5) % 38 + 1
    text[75, 8] = 39  # a byte that the tokenizer's authors never saw
    model = CharModel()
    with torch.no_grad():
        model.embed.weight[39] *= 400.0  # as it came out of the vocabulary extension
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", enabled=args.amp == "fp16", init_scale=1024.0)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "none": torch.float32}[args.amp]
    for epoch in range(args.epochs):
        for i in range(0, len(text), args.batch_size):
            chunk = text[i : i + args.batch_size]
            with torch.autocast("cpu", dtype=dtype, enabled=args.amp != "none"):
                logits = model(chunk[:, :-1])
                loss = F.cross_entropy(logits.float().flatten(0, 1), chunk[:, 1:].flatten())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale()}")
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main(get_args())
