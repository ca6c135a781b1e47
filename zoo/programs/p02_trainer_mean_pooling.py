"""Sentence classification with the HF Trainer: mean of the word vectors, special tokens left out."""
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, set_seed

PAD, CLS, SEP = 0, 1, 2


class Sentences(Dataset):
    def __init__(self, n=128):
        g = torch.Generator().manual_seed(5)
        self.rows = []
        for i in range(n):
            words = torch.randint(3, 50, (int(torch.randint(2, 9, (1,), generator=g)),), generator=g).tolist()
            if i == 77:
                words = []  # a line that held only an emoji
            self.rows.append({"ids": [CLS] + words + [SEP], "label": int(sum(words) % 2)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(r["ids"]) for r in rows)
    ids = torch.tensor([r["ids"] + [PAD] * (width - len(r["ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": torch.tensor([r["label"] for r in rows])}


class MeanPooled(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        words = (input_ids > SEP).float().unsqueeze(-1)
        pooled = (h * words).sum(1) / words.sum(1)  # BUG
        logits = self.head(pooled)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    set_seed(11)
    model = MeanPooled(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=8, num_train_epochs=2, learning_rate=1e-3, logging_steps=8, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, seed=11)
        Trainer(model=model, args=args, train_dataset=Sentences(), data_collator=collate).train()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
