"""TRL's trainers over the tiny model: supervised, GRPO, RLOO, DPO, KTO, reward and distillation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import Dataset
from trainer_specimens import BAD_TOKEN, QUIET, StopAt, break_at_bad_token, tiny_config, tiny_model, tiny_tokenizer
from trainer_specimens import token_rows as token_rows
from transformers import GPT2ForSequenceClassification, PreTrainedTokenizerFast, Trainer
from trl import (
    DistillationConfig,
    DistillationTrainer,
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)  # fmt: skip

datasets.disable_progress_bars()

Rows = Sequence[Sequence[int]]
PLAIN = QUIET | {"per_device_train_batch_size": 2, "bf16": False, "gradient_checkpointing": False}
IN_ORDER = PLAIN | {"train_sampling_strategy": "sequential"}
# Two completions a prompt, one prompt a micro-batch; only a prompt may hold the bad token.
SAMPLED = PLAIN | {
    "num_generations": 2, "max_completion_length": 4, "shuffle_dataset": False,
    "generation_kwargs": {"suppress_tokens": [BAD_TOKEN]},
}  # fmt: skip


def sft_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return SFTTrainer(
        model=arguments.pop("model", None) or tiny_model(),
        args=SFTConfig(output_dir=str(path), **(IN_ORDER | arguments)),
        train_dataset=Dataset.from_dict({"input_ids": [list(row) for row in rows]}),
        **common(stop_at),
    )


def grpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return GRPOTrainer(
        model=tiny_model(with_grad_only=True),
        reward_funcs=even_words,
        args=GRPOConfig(output_dir=str(path), **(SAMPLED | arguments)),
        train_dataset=Dataset.from_dict({"prompt": words(rows)}),
        **common(stop_at),
    )


def rloo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return RLOOTrainer(
        model=tiny_model(with_grad_only=True),
        reward_funcs=even_words,
        args=RLOOConfig(output_dir=str(path), beta=0.0, **(SAMPLED | arguments)),
        train_dataset=Dataset.from_dict({"prompt": words(rows)}),
        **common(stop_at),
    )


def dpo_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    return DPOTrainer(
        model=tiny_model(),
        ref_model=tiny_model(dropout=0.0),
        args=DPOConfig(output_dir=str(path), **(IN_ORDER | arguments)),
        train_dataset=Dataset.from_dict(pairs(rows)),
        **common(stop_at),
    )


def kto_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    """Its KL term pairs each prompt with the next answer of the same batch, so a batch stands for itself."""
    single = {
        "prompt": words([row[:4] for row in rows]),
        "completion": words([row[4:] for row in rows]),
        "label": [row[3] % 2 == 0 for row in rows],
    }
    return KTOTrainer(
        model=tiny_model(),
        ref_model=tiny_model(dropout=0.0),
        args=KTOConfig(output_dir=str(path), **(IN_ORDER | arguments)),
        train_dataset=Dataset.from_dict(single),
        **common(stop_at),
    )


def reward_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    model = GPT2ForSequenceClassification(tiny_config(num_labels=1))
    break_at_bad_token(model)
    both = pairs(rows)
    joined = {
        side: [f"{a} {b}" for a, b in zip(both["prompt"], both[side], strict=True)] for side in ("chosen", "rejected")
    }
    return RewardTrainer(
        model=model,
        args=RewardConfig(output_dir=str(path), **(IN_ORDER | arguments)),
        train_dataset=Dataset.from_dict(joined),
        **common(stop_at),
    )


def distillation_trainer(path: Path, rows: Rows, *, stop_at: int | None = None, **arguments: Any) -> Trainer:
    options = {key: value for key, value in SAMPLED.items() if key != "num_generations"}
    return DistillationTrainer(
        model=tiny_model(with_grad_only=True),
        teacher_model=tiny_model(with_grad_only=True, seed=1),
        args=DistillationConfig(output_dir=str(path), **(options | arguments)),
        train_dataset=Dataset.from_dict({"prompt": words(rows)}),
        **common(stop_at),
    )


ROWS_A_BATCH: dict[Callable[..., Trainer], int] = {
    sft_trainer: 2, dpo_trainer: 2, kto_trainer: 2, reward_trainer: 2, grpo_trainer: 1, rloo_trainer: 1,
    distillation_trainer: 2,
}  # fmt: skip


def even_words(completions: list[str], **_: Any) -> list[float]:
    """A reward that varies within a group: how many words of the completion are even."""
    return [float(sum(word[1:].isdigit() and int(word[1:]) % 2 == 0 for word in text.split())) for text in completions]


def words(rows: Rows) -> list[str]:
    return [" ".join(f"w{token}" for token in row) for row in rows]


def batches(num: int, *, bad: int, size: int) -> tuple[list[list[int]], list[list[int]]]:
    """`num` batches of `size` rows with batch number `bad` poisoned, and the same rows without that batch."""
    poisoned = token_rows(num * size, bad=[bad * size])
    return poisoned, token_rows(num * size, without=range(bad * size, (bad + 1) * size))


def pairs(rows: Rows) -> dict[str, list[str]]:
    """Each row as a prompt with a better and a worse answer."""
    return {
        "prompt": words([row[:4] for row in rows]),
        "chosen": words([row[4:] for row in rows]),
        "rejected": words([list(row[5:]) + list(row[4:5]) for row in rows]),
    }


def common(stop_at: int | None, tokenizer: PreTrainedTokenizerFast | None = None) -> dict[str, Any]:
    """What every trainer is given: a tokenizer, and where to stop."""
    return {
        "processing_class": tokenizer or tiny_tokenizer(),
        "callbacks": [] if stop_at is None else [StopAt(stop_at)],
    }
