"""Tiny real models and data for transformers and TRL trainers, and two runs of one compared bit for bit.

A dataset holds one batch that makes the model divide by zero. `run` trains on it; the run to compare with never sees
that batch and stops as many steps earlier, so that both share one learning-rate schedule.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

VOCABULARY = 64
BAD_TOKEN = 63
LENGTH = 8
QUIET: dict[str, Any] = {
    "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "use_cpu": True, "seed": 0,
    "learning_rate": 1e-2,
}  # fmt: skip


def tiny_config(*, dropout: float = 0.1, **more: Any) -> GPT2Config:
    return GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=1, eos_token_id=1, pad_token_id=0, **more,
    )  # fmt: skip


def tiny_model(*, with_grad_only: bool = False, dropout: float = 0.1, seed: int = 0) -> GPT2LMHeadModel:
    """Two layers of GPT-2 with dropout, whose embedding is divided by zero wherever the bad token stands."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(tiny_config(dropout=dropout))
    break_at_bad_token(model, with_grad_only=with_grad_only)
    return model


def break_at_bad_token(model: Any, *, with_grad_only: bool = False) -> None:
    def divide(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        if with_grad_only and not torch.is_grad_enabled():
            return output  # sampling from NaN would crash, long before the step that this is about
        known = (inputs[0] != BAD_TOKEN).to(output.dtype)
        return output / known.unsqueeze(-1)

    model.transformer.wte.register_forward_hook(divide)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def token_rows(num_rows: int, *, bad: Sequence[int] = (), without: Sequence[int] = ()) -> list[list[int]]:
    """Rows of tokens; those in `bad` hold the bad token, those in `without` are left out."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(3, BAD_TOKEN, (num_rows, LENGTH), generator=generator).tolist()
    for row in bad:
        rows[row][2] = BAD_TOKEN
    return [row for number, row in enumerate(rows) if number not in without]


def token_dataset(num_rows: int, **which: Sequence[int]) -> Dataset:
    rows = token_rows(num_rows, **which)
    return Dataset.from_dict({"input_ids": rows, "labels": rows, "attention_mask": [[1] * LENGTH for _ in rows]})


class StopAt(TrainerCallback):
    """Ends training after so many steps, with the schedule of a longer run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self.step:
            control.should_training_stop = True


def tiny_trainer(
    path: Path, dataset: Dataset, *, model: nn.Module | None = None, stop_at: int | None = None,
    kind: Callable[..., Trainer] = Trainer, eval_dataset: Dataset | None = None, **arguments: Any,
) -> Trainer:  # fmt: skip
    """A plain Trainer over `dataset` in its order, two rows a batch."""
    options = QUIET | {"per_device_train_batch_size": 2, "train_sampling_strategy": "sequential"} | arguments
    return kind(
        model=tiny_model() if model is None else model,
        args=TrainingArguments(output_dir=str(path), **options),
        train_dataset=dataset,
        eval_dataset=eval_dataset,
        callbacks=[StopAt(stop_at)] if stop_at is not None else [],
    )


def train(trainer: Trainer, **options: Any) -> Trainer:
    """Train with the seeds that every run here begins with."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    with warnings.catch_warnings():
        # torch's words about a schedule that is stepped before its optimizer: a refused first step looks like that.
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*", category=UserWarning)
        trainer.train(**options)
    return trainer


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Everything a skipped batch must leave no trace in."""
    model = trainer.model
    optimizer = trainer.optimizer
    schedule = {k: v for k, v in trainer.lr_scheduler.state_dict().items() if k != "_get_lr_called_within_step"}
    return {
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
        "buffers": {name: b.detach().clone() for name, b in model.named_buffers()},
        "moments": [dict(values) for values in optimizer.state_dict()["state"].values()],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "schedule": schedule,
        "rng": torch.get_rng_state(),
        "python": random.getstate(),
    }


def differences(one: Any, two: Any, where: str = "") -> list[str]:
    """Where two states differ, to the bit."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        same = one.shape == two.shape and one.dtype == two.dtype
        same = (
            same and torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))
            if one.dim()
            else same and torch.equal(one, two)
        )
        return [] if same else [where]
    if isinstance(one, dict) and isinstance(two, dict):
        if one.keys() != two.keys():
            return [f"{where}: keys {sorted(map(str, one.keys() ^ two.keys()))}"]
        return [found for key in one for found in differences(one[key], two[key], f"{where}.{key}")]
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        if len(one) != len(two):
            return [f"{where}: {len(one)} and {len(two)} items"]
        return [
            found for i, pair in enumerate(zip(one, two, strict=True)) for found in differences(*pair, f"{where}[{i}]")
        ]
    return [] if one == two else [f"{where}: {one!r} and {two!r}"]


def all_finite(trainer: Trainer) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())


def logged(trainer: Trainer, key: str) -> list[Any]:
    return [row[key] for row in trainer.state.log_history if key in row]


def plain_trainer(
    path: Path, rows: Sequence[Sequence[int]], *, stop_at: int | None = None, **arguments: Any
) -> Trainer:
    """A Trainer over these rows of tokens, called as TRL's are."""
    columns = {"input_ids": list(rows), "labels": list(rows), "attention_mask": [[1] * LENGTH for _ in rows]}
    return tiny_trainer(path, Dataset.from_dict(columns), stop_at=stop_at, **arguments)
