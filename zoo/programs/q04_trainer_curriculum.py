"""HF Trainer on a tiny GPT-2: warm-up, evaluation in between, most labels ignored, and the second half of the data is another language."""
import hashlib
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)


class Text(Dataset):
    def __init__(self, n, seed, switch):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for k in range(n):
            step = 1 if k < switch else 7
            ids = (torch.randint(0, 30, (1,), generator=g) + step * torch.arange(12)) % 30
            labels = ids.clone()
            labels[: int(torch.randint(3, 11, (1,), generator=g))] = -100
            self.rows.append({"input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class InOrder(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    set_seed(21)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=16, n_embd=24, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=8, max_steps=60, learning_rate=5e-3, warmup_steps=10, eval_strategy="steps", eval_steps=20, logging_steps=10,
                                 save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, weight_decay=0.01, max_grad_norm=1.0, seed=21)
        InOrder(model=model, args=args, train_dataset=Text(480, 1, 240), eval_dataset=Text(40, 2, 20)).train()
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


main()
