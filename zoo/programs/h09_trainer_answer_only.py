"""Answer-only fine-tuning with the HF Trainer: single samples without any label, lengths that change, left padding with a full mask."""
import hashlib
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Chats(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = 6 + i % 9
        ids = torch.randint(2, 50, (n,), generator=g)
        labels = ids.clone()
        labels[:n // 2] = -100
        if i % 13 == 5:
            labels[:] = -100  # the answer was cut away; the rest of the batch has answers
        return {"input_ids": ids, "labels": labels}


def left_pad(items):
    t = max(len(x["input_ids"]) for x in items)
    out = {"input_ids": [], "labels": [], "attention_mask": []}
    for x in items:
        k = t - len(x["input_ids"])
        out["input_ids"].append(torch.cat([torch.zeros(k, dtype=torch.long), x["input_ids"]]))
        out["labels"].append(torch.cat([torch.full((k,), -100), x["labels"]]))
        out["attention_mask"].append((torch.arange(t) >= k).long())
    return {k: torch.stack(v) for k, v in out.items()}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=2, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(out, max_steps=24, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=2e-3, logging_steps=6,
                             report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, seed=1, warmup_steps=4)
    Trainer(model=model, args=args, train_dataset=Chats(), data_collator=left_pad).train()
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
