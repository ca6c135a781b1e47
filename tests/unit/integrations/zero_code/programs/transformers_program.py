"""A transformers Trainer over data in order."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from common_parts import BATCH, Net, compare, points, state
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.net(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def train(accumulate: int, poison: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    data = points(accumulate, poison)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulate,
            num_train_epochs=1, learning_rate=1e-2, lr_scheduler_type="constant_with_warmup", warmup_steps=5,
            logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, seed=3,
        )  # fmt: skip
        rows = [{"x": x, "labels": torch.tensor(1.0)} for x in data]
        trainer = InOrder(WithLoss(), arguments, train_dataset=rows)
        trainer.train()
    optimizer = trainer.optimizer
    return state(trainer.model, getattr(optimizer, "optimizer", optimizer), trainer.lr_scheduler)


if __name__ == "__main__":
    compare(train)
