"""Character model; before training the validation perplexity overflows to inf and best_loss starts at inf. Plateau scheduler."""
import argparse
import hashlib

import torch
import torch.nn as nn


class CharLM(nn.Module):
    def __init__(self, v=20, d=24):
        super().__init__()
        self.e, self.rnn, self.out = nn.Embedding(v, d), nn.LSTM(d, d, batch_first=True), nn.Linear(d, v)
        nn.init.normal_(self.out.weight, std=60.0)  # a bad start on purpose

    def forward(self, x):
        return self.out(self.rnn(self.e(x))[0])


def text(n, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 20, (n, 1), generator=g)
    return (start + 3 * torch.arange(13)) % 20


def validate(model, x):
    model.eval()
    with torch.no_grad():
        nll = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    model.train()
    return nll, torch.exp(nll * 12)  # per word


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    a = ap.parse_args()
    torch.manual_seed(8)
    model, train, valid = CharLM(), text(200, 1), text(40, 2)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    best = float("inf")
    for epoch in range(a.epochs):
        nll, ppl = validate(model, valid)
        print(f"epoch {epoch} valid {nll:.3f} word perplexity {ppl:.3g} best {best}")
        best = min(best, nll.item())
        plateau.step(nll)
        for xb in train.split(20):
            loss = nn.functional.cross_entropy(model(xb[:, :-1]).flatten(0, 1), xb[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
