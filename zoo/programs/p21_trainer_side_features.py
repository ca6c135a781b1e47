"""HF Trainer: a tiny DistilBERT with two side features that the collator computes (characters a second, share of capitals)."""
import tempfile

import torch
import torch.nn as nn
from transformers import DistilBertConfig, DistilBertModel, Trainer, TrainingArguments, set_seed


def records(n=120):
    g = torch.Generator().manual_seed(18)
    out = []
    for i in range(n):
        length = int(torch.randint(4, 10, (1,), generator=g))
        seconds = float(torch.rand(1, generator=g) * 5 + 0.5)
        if i == 64:
            seconds = 0.0  # pasted, not typed
        out.append({"ids": torch.randint(1, 40, (length,), generator=g), "seconds": seconds, "capitals": float(torch.rand(1, generator=g)), "label": i % 3})
    return out


class Collator:
    def __call__(self, rows):
        ids = nn.utils.rnn.pad_sequence([r["ids"] for r in rows], batch_first=True)
        chars = (ids > 0).sum(1) * 5.0
        speed = chars / torch.tensor([r["seconds"] for r in rows])  # BUG
        side = torch.stack([speed / 10, torch.tensor([r["capitals"] for r in rows])], 1)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "side": side, "labels": torch.tensor([r["label"] for r in rows])}


class Typist(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = DistilBertModel(DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=16))
        self.side, self.head = nn.Linear(2, 16), nn.Linear(32, 3)

    def forward(self, input_ids, attention_mask, side, labels=None):
        h = self.text(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        logits = self.head(torch.cat([h, self.side(side)], 1))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


if __name__ == "__main__":
    set_seed(3)
    model = Typist()
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=5, gradient_accumulation_steps=2, num_train_epochs=2, learning_rate=2e-3, lr_scheduler_type="cosine",
                                 logging_steps=6, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, seed=3)
        result = Trainer(model=model, args=args, train_dataset=records(), data_collator=Collator()).train()
    print("training loss", result.training_loss)
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
