"""The TRL trainers over the tiny model: supervised, GRPO, RLOO, DPO, reward and distillation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trainer_specimens import BAD_TOKEN, QUIET, StopAt, tiny_model, tiny_tokenizer, token_rows
from transformers import GPT2Config, GPT2ForSequenceClassification, Trainer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer


def words(rows: Sequence[Sequence[int]]) -> list[str]:
    return [" ".join(f"w{token}" for token in row) for row in rows]


def _stop(stop_at: int | None) -> list[StopAt]:
    return [] if stop_at is None else [StopAt(stop_at)]


def sft_trainer(path: Path, rows: Sequence[Sequence[int]], *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    options = QUIET | {"per_device_train_batch_size": 2, "train_sampling_strategy": "sequential", "bf16": False}
    return SFTTrainer(
        model=tiny_model(),
        args=SFTConfig(output_dir=str(path), gradient_checkpointing=False, **(options | arguments)),
        train_dataset=Dataset.from_dict({"input_ids": [list(row) for row in rows]}),
        processing_class=tiny_tokenizer(),
        callbacks=_stop(stop_at),
    )


def even_words(completions: list[str], **_: Any) -> list[float]:
    """A reward that varies within a group: how many words of the completion are even."""
    return [float(sum(word[1:].isdigit() and int(word[1:]) % 2 == 0 for word in text.split())) for text in completions]


def grpo_trainer(
    path: Path, rows: Sequence[Sequence[int]], *, stop_at: int | None = None, model: Any = None, **arguments: Any
) -> Trainer:
    """One prompt a micro-batch, two completions each, generated when their window begins."""
    options = QUIET | {"per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 4}
    options |= {"shuffle_dataset": False, "bf16": False, "gradient_checkpointing": False}
    options |= {"generation_kwargs": {"suppress_tokens": [BAD_TOKEN]}}  # only a prompt may hold it
    return GRPOTrainer(
        model=tiny_model(with_grad_only=True) if model is None else model,
        reward_funcs=even_words,
        args=GRPOConfig(output_dir=str(path), **(options | arguments)),
        train_dataset=Dataset.from_dict({"prompt": words(rows)}),
        processing_class=tiny_tokenizer(),
        callbacks=_stop(stop_at),
    )


def pairs(rows: Sequence[Sequence[int]]) -> dict[str, list[str]]:
    """Each row as a prompt with a better and a worse answer."""
    return {
        "prompt": words([row[:4] for row in rows]),
        "chosen": words([row[4:] for row in rows]),
        "rejected": words([row[5:] + row[4:5] for row in rows]),
    }


def dpo_trainer(path: Path, rows: Sequence[Sequence[int]], *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    options = QUIET | {"per_device_train_batch_size": 2, "train_sampling_strategy": "sequential", "bf16": False}
    return DPOTrainer(
        model=tiny_model(),
        ref_model=tiny_model(dropout=0.0),
        args=DPOConfig(output_dir=str(path), gradient_checkpointing=False, **(options | arguments)),
        train_dataset=Dataset.from_dict(pairs(rows)),
        processing_class=tiny_tokenizer(),
        callbacks=_stop(stop_at),
    )


def batch_rows(num_batches: int, *, bad: int, size: int = 2) -> tuple[list[list[int]], list[list[int]]]:
    """`num_batches` of `size` rows with batch number `bad` poisoned, and the same rows without that batch."""
    first = bad * size
    poisoned = token_rows(num_batches * size, bad=[first])
    assert any(BAD_TOKEN in row for row in poisoned)
    return poisoned, token_rows(num_batches * size, without=range(first, first + size))
