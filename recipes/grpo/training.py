"""One GRPO run from its settings to its files, the same for the toy and for the language model.

Leaves in the run's folder: `settings.json`, `log.json` (a row a step), `reward.svg`, `result.json`, checkpoints, and in
`run` the guard's journal, which `steady report` and `steady watch` read.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig

from recipes.common import plots
from recipes.units.report import hardware

from .settings import Settings
from .statistics import LogitStatistics
from .trainer import StableGRPOTrainer, stable_config

SHOWN = 5
"""So many steps are averaged where a reward is told as a number: one step's is of a few prompts."""


def config_for(settings: Settings, out: Path, **changes: Any) -> GRPOConfig:
    given: dict[str, Any] = {
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.batch_size,
        "num_generations": settings.group,
        "max_completion_length": settings.max_tokens,
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
        "max_grad_norm": settings.max_grad_norm,
        "warmup_steps": settings.warmup_steps,
        "bf16": settings.precision == "bf16",
        "seed": settings.seed,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
    }
    return stable_config(out / "checkpoints", **{**given, **changes})


def run(trainer: StableGRPOTrainer, out: Path, *, checkpoint: str | None = None) -> dict[str, Any]:
    """Train, and say what came of it. The numbers are also in `out/result.json`."""
    quieten(trainer)
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=checkpoint)
    seconds = time.perf_counter() - started
    told = outcome_of(trainer)
    (out / "log.json").write_text(json.dumps(writable(trainer.state.log_history)))
    curve = [(float(row["step"]), float(row["reward"])) for row in trainer.state.log_history if "reward" in row]
    plots.lines(out / "reward.svg", "mean reward of each step", {"reward": curve}, log=False)
    told |= {"seconds": round(seconds, 1), "hardware": hardware(), "date": time.strftime("%Y-%m-%d")}
    return told


def outcome_of(trainer: StableGRPOTrainer) -> dict[str, Any]:
    """What a run of any kind is judged by."""
    rows = [row for row in trainer.state.log_history if "loss" in row]
    counts = trainer.guard.summary() if trainer.guard is not None else {}
    bad = trainer.bad_weights()
    return {
        "steps": trainer.state.global_step,
        "reward_first": mean(trainer.rewards()[:SHOWN]),
        "reward_last": mean(trainer.rewards()[-SHOWN:]),
        "rewards": [round(reward, 4) for reward in trainer.rewards()],
        "steps_without_finite_loss": sum(not math.isfinite(row["loss"]) for row in rows),
        "refused": counts.get("skipped"),
        "rolled_back": counts.get("rolled_back"),
        "incidents": counts.get("incidents"),
        "non_finite_weights": len(bad),
        "bad_parameters": bad[:8],
        "logits": trainer.logit_statistics.plain(),
        "gradient_reports": [str(report) for report in trainer.gradients.reports[-1:]],
    }


def in_words(told: dict[str, Any]) -> str:
    return (
        f"reward {told['reward_first']:.3f} -> {told['reward_last']:.3f} (means of {SHOWN} steps) in {told['steps']} "
        f"steps, {told['refused']} updates refused, {told['non_finite_weights']} weights not finite, "
        f"{told['seconds']:.0f} s on {told['hardware']}"
    )


def written(out: Path, told: dict[str, Any]) -> dict[str, Any]:
    (out / "result.json").write_text(json.dumps(told, indent=2) + "\n")
    print(in_words(told))
    print(LogitStatistics(**told["logits"]))
    print(f"picture: {out / 'reward.svg'}; journal: steady report {out / 'run'}")
    return told


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def writable(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no NaN: such numbers become text."""
    return [
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in history
    ]


def quieten(trainer: StableGRPOTrainer) -> None:
    """The bar stays, and a line with the reward every ten steps; TRL's own line for every step goes."""
    logging.disable_progress_bar()  # of files that take a moment to write
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ in ("PrinterCallback", "ProgressCallback", "RichProgressCallback"):
            trainer.remove_callback(type(callback))
    trainer.add_callback(RewardLine())
    if not trainer.args.disable_tqdm:
        trainer.add_callback(Bar())


class Bar(ProgressCallback):  # type: ignore[misc]
    """The bar alone."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


class RewardLine(TrainerCallback):  # type: ignore[misc]
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "reward" in logs and state.global_step % 10 == 0:
            print(f"[step {state.global_step}] reward {logs['reward']:.3f}", flush=True)


class StopInTime(TrainerCallback):  # type: ignore[misc]
    """Ends training after so many seconds, with whole steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.perf_counter() - self._began > self.seconds:
            control.should_training_stop = True


def sampled(model: Any, tokenizer: Any, texts: list[str], *, max_tokens: int, seed: int) -> list[str]:
    """What a model says to each text, sampled at temperature 1."""
    given = tokenizer(texts, return_tensors="pt", padding=True).to(model.device)
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)
        out = model.eval().generate(
            **given, max_new_tokens=max_tokens, do_sample=True, top_k=0, pad_token_id=tokenizer.pad_token_id
        )
    said: list[str] = tokenizer.batch_decode(out[:, given.input_ids.shape[1] :], skip_special_tokens=True)
    return said
