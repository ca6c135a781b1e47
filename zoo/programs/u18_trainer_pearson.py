"""Hugging Face Trainer, a tiny BERT for sentence similarity; the loss is one minus the correlation in a batch."""
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Pairs(torch.utils.data.Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(90)
        self.ids = torch.randint(3, 60, (n, 12), generator=g)
        self.score = torch.rand(n, generator=g) * 5
        self.score[40:48] = 5.0  # a block of copies, all rated alike

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(12, dtype=torch.long), "labels": self.score[i]}


def pearson(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm())


class CorrelationTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = 1 - pearson(outputs.logits.squeeze(-1), labels)
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        print(state.global_step, logs)


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32, num_labels=1)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(out, num_train_epochs=2, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=4, report_to=[], save_strategy="no",
                                 use_cpu=True, disable_tqdm=True, seed=1, warmup_steps=4)
        CorrelationTrainer(model=model, args=args, train_dataset=Pairs(), callbacks=[Print()]).train()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
