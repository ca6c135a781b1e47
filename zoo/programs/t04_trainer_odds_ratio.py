"""Preference tuning of a small GPT-2 with an odds-ratio term (reference-free), through the Hugging Face Trainer."""
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

T = 20


class Pairs(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(4)
        self.items = []
        for i in range(n):
            prompt = torch.randint(3, 40, (8 if i != 50 else T,), generator=g)  # one prompt fills the whole window
            item = {}
            for side in ("chosen", "rejected"):
                answer = torch.randint(3, 40, (12,), generator=g)
                ids = torch.cat([prompt, answer])[:T]
                mask = torch.zeros(T, dtype=torch.long)
                mask[len(prompt):] = 1
                item[side], item[side + "_mask"] = ids, mask
            self.items.append(item)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def average_logp(logits, ids, mask):
    logp = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    m = mask[:, 1:].float()
    return (logp * m).sum(1) / m.sum(1).clamp(min=1)


class OddsTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        good = average_logp(model(input_ids=inputs["chosen"]).logits, inputs["chosen"], inputs["chosen_mask"])
        bad = average_logp(model(input_ids=inputs["rejected"]).logits, inputs["rejected"], inputs["rejected_mask"])
        odds = good - bad - (torch.log1p(-torch.exp(good)) - torch.log1p(-torch.exp(bad)))
        loss = -good.mean() - 0.1 * torch.nn.functional.logsigmoid(odds).mean()
        return (loss, None) if return_outputs else loss


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=T, n_embd=24, n_layer=1, n_head=2))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(out, num_train_epochs=2, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=4, report_to=[],
                                 save_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False, seed=7)
        OddsTrainer(model=model, args=args, train_dataset=Pairs()).train()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
