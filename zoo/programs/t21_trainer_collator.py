"""Hugging Face Trainer on a table of histograms; the collator scales every histogram to its largest bin."""
import tempfile

import torch
import torch.nn as nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Histograms(torch.utils.data.Dataset):
    def __init__(self, n=144):
        g = torch.Generator().manual_seed(60)
        self.rows = torch.poisson(torch.rand(n, 10, generator=g) * 6, generator=g)
        self.rows[109] = 0.0  # nothing was counted that day
        self.target = self.rows.argmax(1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"counts": self.rows[i], "labels": self.target[i]}


def collate(items):
    counts = torch.stack([it["counts"] for it in items])
    counts = counts / counts.max(1, keepdim=True).values
    return {"counts": counts, "labels": torch.stack([it["labels"] for it in items])}


class Peak(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, counts, labels=None):
        logits = self.f(counts)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        print(state.global_step, logs)


def main():
    torch.manual_seed(8)
    model = Peak()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(out, num_train_epochs=2, per_device_train_batch_size=12, learning_rate=5e-3, logging_steps=6, report_to=[], save_strategy="no",
                                 use_cpu=True, disable_tqdm=True, seed=3, lr_scheduler_type="cosine")
        Trainer(model=model, args=args, train_dataset=Histograms(), data_collator=collate, callbacks=[Say()]).train()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
