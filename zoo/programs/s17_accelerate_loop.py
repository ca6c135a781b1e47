"""Token classification in an Accelerate loop, mean over real tokens per sentence."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader


class Tagger(nn.Module):
    def __init__(self, vocab=40, d=24, tags=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def sentences(n=144):
    g = torch.Generator().manual_seed(18)
    rows = []
    for k in range(n):
        ids = torch.randint(1, 40, (9,), generator=g)
        ids[int(torch.randint(3, 10, (1,), generator=g)):] = 0
        if k == 64:
            ids[:] = 0
        rows.append({"ids": ids, "tags": ids % 5})
    return rows


def loss_of(logits, batch):
    real = (batch["ids"] != 0).float()
    each = nn.functional.cross_entropy(logits.transpose(1, 2), batch["tags"], reduction="none")
    per_sentence = (each * real).sum(1) / real.sum(1)  # BUG
    return per_sentence.mean()


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(sentences(), batch_size=12)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for epoch in range(3):
        total = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model(batch["ids"]), batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            total += loss.item()
        accelerator.print(f"epoch {epoch}: {total / len(loader):.4f}")
    ok = all(torch.isfinite(p).all() for p in accelerator.unwrap_model(model).parameters())
    accelerator.print("FINITE" if ok else "POISONED")


if __name__ == "__main__":
    main()
