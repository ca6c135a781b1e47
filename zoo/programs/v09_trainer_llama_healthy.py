"""Hugging Face Trainer: a tiny Llama, left padding, accumulation, evaluation between epochs, a callback that stops early."""
import hashlib
import tempfile

import torch
from transformers import EarlyStoppingCallback, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Text(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = [torch.randint(3, 50, (int(torch.randint(3, 14, (1,), generator=g)),), generator=g) for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"ids": self.rows[i]}


def left_pad(items):
    n = max(len(it["ids"]) for it in items)
    ids, mask = torch.zeros(len(items), n, dtype=torch.long), torch.zeros(len(items), n, dtype=torch.long)
    for k, it in enumerate(items):
        ids[k, n - len(it["ids"]) :] = it["ids"]
        mask[k, n - len(it["ids"]) :] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                         max_position_embeddings=32))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(out, num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=3, learning_rate=3e-3, logging_steps=5,
                                 report_to=[], save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="eval_loss",
                                 use_cpu=True, disable_tqdm=True, seed=5, max_grad_norm=0.5, remove_unused_columns=False, lr_scheduler_type="cosine_with_restarts")
        Trainer(model=model, args=args, train_dataset=Text(70, 1), eval_dataset=Text(12, 2), data_collator=left_pad,
                callbacks=[EarlyStoppingCallback(1)]).train()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


main()
