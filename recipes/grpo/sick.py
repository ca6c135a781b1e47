"""Logits that overflow in FP16, in four runs: as it dies, as it limps, as it is saved, and in a dtype that holds it.

The model has a special token `[SEG]` that a few prompts begin with, as prompts of a model that segments do. Its row of
the embedding is an outlier, as rows that were added late and trained little are, and it meets an outlier channel in
the second of three layers: there the product inside the feed-forward block is 130,000, which FP16 does not hold. It
becomes Inf, the norm of the next layer makes NaN of it, attention spreads that over every later position, and sampling
says "probability tensor contains either `inf`, `nan` or element < 0". All other prompts are well.

- `plain`: GRPOTrainer as it comes.
- `processors`: with both logits processors. Sampling goes on, and the loss of those completions is NaN.
- `guarded`: with the processors and the guard, as `StableGRPOTrainer` is.
- `float32`: the very same with weights that hold 130,000, plain: what the guarded run should come near to.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from rich.progress import Progress
from transformers import TrainerCallback

import steadygrad as sg
from recipes.common import plots
from recipes.common.speaking import put_aside
from recipes.units.report import hardware

from .settings import Settings
from .toy import PROMPTS, byte_tokenizer, share_of_digits, tiny_llama
from .trainer import StableGRPOTrainer
from .training import config_for, outcome_of, quieten

SEG = "<seg>"
SICK_LAYER = 1
OUTLIER = 48.0
NUM_PROMPTS, WITH_SEG = 64, (9, 33, 50)
SETTINGS = Settings(steps=40, batch_size=32, group=8, max_tokens=12, learning_rate=5e-3)
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"guarded": False, "processors": False},
    "processors": {"guarded": False},
    "guarded": {},
    "float32": {"guarded": False, "processors": False},
}


@dataclass(frozen=True, kw_only=True)
class SickRun:
    """One run of the table."""

    name: str
    ended: str
    told: dict[str, Any]
    incidents: list[str] = field(default_factory=list)


def show_sick(out: Path, *, seed: int = 0, steps: int | None = None) -> dict[str, Any]:
    """Run all four, print the table, and leave it in `out/sick.md` and `out/sick.json`."""
    settings = replace(SETTINGS, seed=seed, steps=steps or SETTINGS.steps)
    put_aside(out, "sick.json")
    runs = [one_run(name, settings, out) for name in RUNS]
    words = f"{table(runs, settings)}\n\n{hardware()}, {time.strftime('%Y-%m-%d')}.\n"
    print(f"\n{words}")
    for line in (line for run in runs for line in run.incidents):
        print(line)
    out.mkdir(parents=True, exist_ok=True)
    told = {run.name: {"ended": run.ended, "incidents": run.incidents, **run.told} for run in runs}
    curves = {run.name: [(float(step), r) for step, r in enumerate(run.told["rewards"], 1)] for run in runs}
    plots.lines(out / "sick.svg", "mean reward of each step", curves, log=False)
    (out / "sick.md").write_text(words, encoding="utf-8")
    (out / "sick.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return told


def one_run(name: str, settings: Settings, out: Path) -> SickRun:
    print(f"\n== {name}")
    dtype = torch.float32 if name == "float32" else torch.float16
    tokenizer = byte_tokenizer(unknown=SEG)
    arguments = config_for(
        settings, out / name, disable_tqdm=True, save_strategy="no", bf16=False,
        adam_epsilon=1e-4,  # 1e-8 is zero in FP16, which is another illness: see recipes.sft --sick
        generation_kwargs={"suppress_tokens": [tokenizer.unk_token_id]},
    )  # fmt: skip
    ended = "all steps"
    with StableGRPOTrainer(
        sick_llama(settings.seed, dtype, tokenizer.unk_token_id), share_of_digits, arguments,
        train_dataset=prompts_with_seg(), processing_class=tokenizer, run_dir=out / name / "run", **RUNS[name],
    ) as trainer:  # fmt: skip
        quieten(trainer)
        trainer.add_callback(Steps(settings.steps))
        try:
            trainer.train()
        except RuntimeError as error:
            ended = f"RuntimeError: {error}"
            print(ended)
        print(trainer.told())
        incidents = [in_words(each) for each in trainer.guard.incidents] if trainer.guard is not None else []
        return SickRun(name=name, ended=ended, told=outcome_of(trainer), incidents=incidents)


def sick_llama(seed: int, dtype: torch.dtype, seg_id: int) -> Any:
    """Healthy but for one row of the embedding and one channel that only this row reaches."""
    model = tiny_llama(seed, layers=3)
    with torch.no_grad():
        embedding, mlp = model.model.embed_tokens.weight, model.model.layers[SICK_LAYER].mlp
        embedding[:, 0] = 0.0
        embedding[seg_id] = 0.0
        embedding[seg_id, 0] = 1.0
        for projection in (mlp.gate_proj, mlp.up_proj):
            projection.weight[0] = 0.0
            projection.weight[0, 0] = OUTLIER
    return model.to(dtype)


def prompts_with_seg() -> Dataset:
    texts = [PROMPTS[number % len(PROMPTS)] for number in range(NUM_PROMPTS)]
    return Dataset.from_dict({"prompt": [SEG * (number in WITH_SEG) + text for number, text in enumerate(texts)]})


def in_words(incident: sg.Incident) -> str:
    """An incident in a line or two: what was seen, and where it began."""
    found = f"incident {incident.number}, step {incident.first_step}: {incident.headline}"
    diagnosis = incident.diagnosis
    if diagnosis is None or diagnosis.origin is None:
        return found
    cause = f"{diagnosis.cause.code} {diagnosis.cause.slug}" if diagnosis.cause is not None else "cause not found"
    held = ", ".join(trial.remedy.slug for trial in diagnosis.trials if trial.verified) or "none"
    tried = f"verified remedies: {held}" if diagnosis.trials else "remedies were tried at the first incident like it"
    line = (diagnosis.origin.code_line or "").strip()
    return (
        f"{found}\n  {cause}; origin: {diagnosis.origin.op} in {diagnosis.origin.module}: {line}\n"
        f"  because {diagnosis.because}; {tried}"
    )


def table(runs: list[SickRun], settings: Settings) -> str:
    lines = [
        "| run | steps done | steps without a finite loss | tensors not finite | updates refused | "
        "reward, first and last five steps | ended by |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        told = run.told
        refused = "" if told["refused"] is None else told["refused"]
        reward = " -> ".join(
            "none" if math.isnan(r) else f"{r:.3f}" for r in (told["reward_first"], told["reward_last"])
        )
        lines.append(
            f"| {run.name} | {told['steps']} of {settings.steps} | {told['steps_without_finite_loss']} | "
            f"{told['non_finite_weights']} | {refused} | {reward} | {run.ended} |"
        )
    return "\n".join(lines)


class Steps(TrainerCallback):  # type: ignore[misc]
    """A bar of its own for each run, where the trainer's would tear the lines about logits."""

    def __init__(self, total: int) -> None:
        self._bar = Progress(transient=True)
        self._task = self._bar.add_task("Training", total=total)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.advance(self._task)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.stop()
