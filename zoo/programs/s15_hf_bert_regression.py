"""Fine-tuning a tiny BERT for regression, collate function and linear schedule."""
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


class Reviews(Dataset):
    def __init__(self, n=160, seed=12):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for k in range(n):
            ids = torch.randint(5, 60, (int(torch.randint(5, 12, (1,), generator=g)),), generator=g)
            stars, votes = int(torch.randint(1, 6, (1,), generator=g)), int(torch.randint(1, 40, (1,), generator=g))
            if k == 93:
                votes = 0
            score = torch.tensor(float(stars)) / torch.tensor(float(votes)) * 5  # BUG
            self.items.append((ids, score))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    width = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros(len(batch), width, dtype=torch.long)
    for r, (t, _) in enumerate(batch):
        ids[r, : len(t)], mask[r, : len(t)] = t, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.stack([s for _, s in batch])}


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, num_labels=1)
    model = BertForSequenceClassification(config)
    loader = DataLoader(Reviews(), batch_size=8, collate_fn=collate, shuffle=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 5, len(loader) * 2)
    model.train()
    for epoch in range(2):
        for step, batch in enumerate(loader):
            out = model(**batch)
            out.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"epoch {epoch} last loss {out.loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
