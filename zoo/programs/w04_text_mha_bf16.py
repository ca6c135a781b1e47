"""Text classification, one transformer block, bf16 autocast."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD = 0
WORDS = 60


class Reviews(Dataset):
    def __init__(self, n=800):
        g = torch.Generator().manual_seed(2)
        self.items = []
        for i in range(n):
            label = int(torch.randint(0, 3, (1,), generator=g))
            length = int(torch.randint(3, 12, (1,), generator=g))
            words = torch.randint(4, WORDS, (length,), generator=g)
            words[: length // 2] = 1 + label
            if i == 509:  # emoji only, nothing survives the tokenizer
                words = words[:0]
            self.items.append((words, label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(samples):
    width = max(len(w) for w, _ in samples)
    ids = torch.full((len(samples), width), PAD)
    for row, (words, _) in enumerate(samples):
        ids[row, : len(words)] = words
    return ids, torch.tensor([y for _, y in samples])


class Classifier(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, d, padding_idx=PAD)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))
        self.head = nn.Linear(d, 3)

    def forward(self, ids):
        padding = ids == PAD
        x = self.embed(ids)
        h = self.norm1(x)
        attended, weights = self.attention(h, h, h, key_padding_mask=padding)
        x = x + attended
        x = x + self.mlp(self.norm2(x))
        keep = (~padding).unsqueeze(-1)
        pooled = x.masked_fill(~keep, 0.0).sum(1) / keep.sum(1).clamp(min=1)
        return self.head(pooled)


def train():
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=100)
    loader = DataLoader(Reviews(), batch_size=16, shuffle=True, collate_fn=collate)
    step = 0
    for epoch in range(2):
        for ids, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids)
            loss = nn.functional.cross_entropy(logits.float(), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 10 == 0:
                print(f"[{step}] loss={loss.item():.4f} lr={scheduler.get_last_lr()[0]:.2e}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    train()
