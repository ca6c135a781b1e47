"""One fine-tuning run: check the data and the set-up, then train a LoRA adapter under guard.

    trained = fine_tune(model, llm, rows, settings, out)

A `transformers.Trainer` does the training and `sg.attach` guards it. Ctrl-C stops after the step under way, with a
checkpoint; the same command with --resume goes on from there.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import steadygrad as sg
from recipes.common.stopping import StopAtCtrlC
from steadygrad import UsageError
from steadygrad.journal import steps_table

from .base_llm import BaseLLM

Row = dict[str, list[int]]


class Stopped(Exception):
    """Training was stopped by Ctrl-C and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every number of a run, with those of the reports as defaults. They are kept beside the adapter."""

    seed: int = 0
    epochs: float = 3.0
    batch_size: int = 32
    learning_rate: float = 2e-4
    warmup_steps: int = 20
    max_grad_norm: float = 1.0
    rank: int = 16
    precision: str = "fp32"
    gradient_checkpointing: bool = True
    max_steps: int = -1
    adam_epsilon: float = 1e-8
    logging_steps: int = 10

    def quick(self) -> Settings:
        """A few minutes on two cores: few and small steps, therefore longer ones."""
        return replace(
            self, epochs=1.0, batch_size=8, learning_rate=2e-3, warmup_steps=3, rank=8, gradient_checkpointing=False,
            max_steps=24, logging_steps=4,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Trained:
    adapter: str
    steps: int
    seconds: float
    samples_per_second: float
    first_loss: float
    last_loss: float
    refused: int
    incidents: int
    non_finite_weights: int
    selftest: str


class Collate:
    """Rows to a batch, padded on the right: padding is not attended to and not learnt from."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, rows: list[Row]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        filled: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in rows:
            missing = longest - len(row["input_ids"])
            filled["input_ids"].append(row["input_ids"] + [self.pad] * missing)
            filled["labels"].append(row["labels"] + [-100] * missing)
            filled["attention_mask"].append([1] * len(row["input_ids"]) + [0] * missing)
        return {name: torch.tensor(values) for name, values in filled.items()}


def fine_tune(
    model: Any, llm: BaseLLM, rows: list[Row], settings: Settings, out: Path, *, resume: bool = False
) -> Trained:
    """Train the adapter of `model` on `rows`; it lies in `out/adapter` afterwards, the run's journal in `out/run`."""
    if not rows:
        raise UsageError("There are no rows to train on.")
    # A checkpoint every epoch; where epochs are a few steps long, every hundred.
    often = {} if len(rows) >= 100 * settings.batch_size else {"save_strategy": "steps", "save_steps": 100}
    arguments = arguments_for(settings, out, **often)
    collate = Collate(llm.tokenizer.pad_token_id)
    checkpoint = _prepared(out, settings, resume=resume)
    check_labels(rows, arguments, llm)
    with inputs_as_they_come(model, settings):
        tested = self_test(model, rows, settings, collate)
    stop = StopAtCtrlC()
    with tensorboard_in(out / "tensorboard"):
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[stop])
    with inputs_as_they_come(model, settings), sg.attach(trainer, run_dir=out / "run") as guard:
        started = time.perf_counter()
        done_before = int(Path(checkpoint).name.rpartition("-")[2]) if checkpoint else 0
        trainer.train(resume_from_checkpoint=checkpoint)
        seconds = time.perf_counter() - started
        told = guard.summary()
    steps = trainer.state.global_step - done_before
    if stop.asked:
        raise Stopped(f"Stopped after step {trainer.state.global_step}; --resume goes on from there.")
    model.save_pretrained(out / "adapter")
    losses = _losses(out / "run", trainer)
    (out / "log.json").write_text(json.dumps(_writable(trainer.state.log_history)))
    return Trained(
        adapter=str(out / "adapter"),
        steps=trainer.state.global_step,
        seconds=seconds,
        samples_per_second=steps * settings.batch_size / seconds if seconds else 0.0,
        first_loss=losses[0] if losses else math.nan,
        last_loss=losses[-1] if losses else math.nan,
        refused=int(told["skipped"]),
        incidents=int(told["incidents"]),
        non_finite_weights=sum(not bool(torch.isfinite(weight).all()) for weight in model.parameters()),
        selftest=tested,
    )


def _losses(run_dir: Path, trainer: Trainer) -> list[float]:
    """The losses of the updates that were applied, of which the guard has every one; the trainer logs some steps."""
    rows = steps_table(run_dir, columns=["loss", "applied"], allow_empty=True).to_pylist()
    found = [row["loss"] for row in rows if row["applied"] and row["loss"] is not None and math.isfinite(row["loss"])]
    if any(found):
        return found
    return [row["loss"] for row in trainer.state.log_history if "loss" in row and math.isfinite(row["loss"])]


def arguments_for(settings: Settings, out: Path, **changes: Any) -> TrainingArguments:
    given: dict[str, Any] = {
        "output_dir": str(out / "checkpoints"),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps,
        "per_device_train_batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_steps,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": settings.max_grad_norm,
        "adam_epsilon": settings.adam_epsilon,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "bf16": settings.precision == "bf16" and torch.cuda.is_available(),
        "label_names": ["labels"],
        "remove_unused_columns": False,
        "logging_steps": settings.logging_steps,
        "save_strategy": "epoch",
        "save_total_limit": 3,  # with one, a poisoned checkpoint would delete the only good one
        "logging_nan_inf_filter": False,
        "seed": settings.seed,
        "report_to": "tensorboard" if find_spec("tensorboard") else "none",
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**given, **changes})


def check_labels(rows: list[Row], arguments: TrainingArguments, llm: BaseLLM) -> None:
    """Are there labels, do the answers survive, is anything in the settings known to fail? Before any time is spent."""
    found = sg.doctor(args=arguments, dataset=rows, tokenizer=llm.tokenizer)
    worst = next((each for each in found.advice if each.level == "error"), None)
    if worst is not None:
        raise UsageError(f"Not trained: {worst.code} {worst.slug}: {worst.detail}. {worst.help}")


def self_test(model: Any, rows: list[Row], settings: Settings, collate: Collate) -> str:
    """Ten steps on small batches, undone afterwards: the verdict, or a refusal where training would be in vain."""
    device = next(model.parameters()).device
    batches = [
        {name: value.to(device) for name, value in collate(rows[start : start + 2]).items()}
        for start in range(0, min(len(rows), 4), 2)
    ]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    result = sg.selftest(
        model.train(),
        torch.optim.AdamW(weights, lr=settings.learning_rate, eps=settings.adam_epsilon),
        lambda network, batch: network(**batch).loss,
        batches,
        max_grad_norm=settings.max_grad_norm,
        precision="bf16" if settings.precision == "bf16" and device.type == "cuda" else "fp32",
    )
    told = "; ".join(check.detail for check in result.checks if check.outcome != "pass")
    print(f"self-test: {result.verdict}{': ' if told else ''}{told}")
    if result.verdict == "unfit":
        raise UsageError(f"Not trained: the self-test failed: {told}")
    return result.verdict


def _prepared(out: Path, settings: Settings, *, resume: bool) -> str | None:
    """The checkpoint to go on from, if that is asked; else the remains of a former run of this recipe are removed."""
    known = out / "settings.json"
    told = asdict(settings)
    if resume:
        found = get_last_checkpoint(str(out / "checkpoints")) if (out / "checkpoints").is_dir() else None
        if found is None:
            raise UsageError(f"There is nothing to resume in {out}: it holds no checkpoint.")
        if known.is_file() and json.loads(known.read_text()) != told:
            raise UsageError(f"The run in {out} had other settings ({known}): resume it with the same ones.")
        return str(found)
    if known.is_file():
        for name in ("checkpoints", "run", "tensorboard"):
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(told, indent=2))
    return None


def inputs_as_they_come(model: Any, settings: Settings) -> AbstractContextManager[Any]:
    """In BF16 autocast decides what an adapter computes in: PEFT would copy every input to FP32 first."""
    from peft.helpers import disable_input_dtype_casting

    bf16 = settings.precision == "bf16" and torch.cuda.is_available()
    return disable_input_dtype_casting(model) if bf16 else nullcontext()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The same random numbers for the same seed: what an adapter starts from, what is sampled."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def tensorboard_in(folder: Path) -> Iterator[None]:
    """Where the trainer's TensorBoard log goes; an environment variable is the only way to say it."""
    former = os.environ.get("TENSORBOARD_LOGGING_DIR")
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("TENSORBOARD_LOGGING_DIR")
        if former is not None:
            os.environ["TENSORBOARD_LOGGING_DIR"] = former


def _writable(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no NaN: such numbers become text."""
    return [
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in history
    ]
