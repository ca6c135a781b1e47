"""The figures of docs/recipes/units.md.

    python -m recipes.units.measure --out results                          # everything, one after another
    python -m recipes.units.measure --out results --parts sft              # side by side, in processes of their own
    python -m recipes.units.measure --out results --parts cot rft
    python -m recipes.units.measure --out results --parts page             # one page of what all of them left there

`speed` is BF16 with FP32 trainable weights beside FP32, at several batch sizes, and wants the GPU for itself. `sft`,
`cot` and `rft` are the recipes; `sft_fp32` is `sft` in FP32, with the same seed and as many steps; `sick` is the
failing configuration. A part is written as soon as it is there, and one that fails is told and passed over.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

import steadygrad as sg
from recipes import cot, rft, sft

from .base_llm import TRAINING_DTYPE, BaseLLM, with_lora
from .command import Recipe, parser, two_sides
from .conversions import drawn
from .report import hardware
from .sick import show_sick
from .training import Collate, Settings, arguments_for, inputs_as_they_come, seeded

WARM = 3
PARTS = ("speed", "sft", "sft_fp32", "cot", "rft", "sick", "page")


class Clock(TrainerCallback):  # type: ignore[misc]
    """The seconds of each step after the first few, with the device waited for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if state.global_step > WARM:
            self.seconds.append(now - self._last)
        self._last = now


def speed(options: Any, *, precision: str, batch: int, steps: int, checkpointing: bool) -> dict[str, Any]:
    """A few guarded steps of SFT: the samples of the median one in a second."""
    recipe = sft.RECIPE
    settings = Settings(
        batch_size=batch, precision=precision, rank=options.rank, max_steps=steps, logging_steps=steps, warmup_steps=5,
        learning_rate=options.learning_rate, gradient_checkpointing=checkpointing,
    )  # fmt: skip
    training, _ = two_sides(recipe, options)
    llm = BaseLLM(options.model, instruction=recipe.instruction, cache=options.cache, dtype=TRAINING_DTYPE[precision])
    chosen = drawn(training, batch * steps, seed=0)
    rows = llm.rows((str(question), recipe.reply(question)) for question in chosen)
    clock, out = Clock(), options.out / f"{precision}-{batch}-{checkpointing}"
    with seeded(0):
        model = with_lora(llm.model, rank=settings.rank)
    trainer = Trainer(
        model=model,
        args=arguments_for(settings, out, save_strategy="no", report_to="none", disable_tqdm=True),
        train_dataset=rows,
        data_collator=Collate(llm.tokenizer.pad_token_id),
        callbacks=[clock],
    )
    with inputs_as_they_come(model, settings), sg.attach(trainer, run_dir=out / "run"):
        trainer.train()
    return {"samples_per_second": batch / statistics.median(clock.seconds)}


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    asked.add_argument("--model")
    asked.add_argument("--cache")
    asked.add_argument("--batch-size", type=int, default=256)
    asked.add_argument("--learning-rate", type=float, default=1e-3)
    asked.add_argument("--rank", type=int, default=32)
    asked.add_argument("--questions", type=int, default=500)
    asked.add_argument("--steps", type=int, default=400, help="of SFT; CoT makes half as many, RFT an eighth")
    asked.add_argument("--sampled", type=int, default=1500, help="questions that RFT samples replies to")
    asked.add_argument("--speed-batches", type=int, nargs="+", default=[256, 1024])
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    def part(name: str, make: Callable[[], Any]) -> None:
        started = time.monotonic()
        try:
            found = make()
        except Exception as fault:  # the other parts are worth having
            traceback.print_exc()
            found = {"failed": f"{type(fault).__name__}: {fault}"}
        print(f"## {name}: {time.monotonic() - started:.1f} s", flush=True)
        (given.out / f"part-{name}.json").write_text(json.dumps(found, indent=2))

    def options_for(recipe: Recipe, name: str, *words: str) -> Any:
        shared = ["--questions", str(given.questions), "--rank", str(given.rank)]
        shared += ["--batch-size", str(given.batch_size), "--learning-rate", str(given.learning_rate)]
        for key in ("model", "cache"):
            shared += [f"--{key}", getattr(given, key)] if getattr(given, key) else []
        options = parser(recipe).parse_args(["train", "--no-gradient-checkpointing", *shared, *words])
        options.out = given.out / "work" / name
        return options

    def trained(recipe: Recipe, name: str, train: Callable[..., Any], precision: str, share: float, *more: str) -> None:
        words = ["--precision", precision, "--max-steps", str(max(5, int(given.steps * share))), *more]
        part(name, lambda: train(recipe, options_for(recipe, name, *words)))

    if "speed" in given.parts:
        for batch, checkpointing in [(size, False) for size in given.speed_batches] + [(32, True)]:
            for precision in ("bf16", "fp32"):
                how = f"batch {batch}{', gradient checkpointing' if checkpointing else ''}"
                options = options_for(sft.RECIPE, "speed")
                measure = partial(speed, options, precision=precision, batch=batch, steps=12)
                part(f"speed {precision}, {how}", partial(measure, checkpointing=checkpointing))
    if "sft" in given.parts:
        trained(sft.RECIPE, "sft", sft.train, "bf16", 1.0)
    if "sft_fp32" in given.parts:
        trained(sft.RECIPE, "sft_fp32", sft.train, "fp32", 1.0)
    if "cot" in given.parts:
        trained(cot.RECIPE, "cot", sft.train, "bf16", 0.5)
    if "rft" in given.parts:
        start = ("--start", str(given.out / "work" / "cot"), "--samples", str(given.sampled))
        trained(rft.RECIPE, "rft", rft.train, "bf16", 0.125, *start, "--learning-rate", "2e-4")
    if "sick" in given.parts:
        part("sick", lambda: show_sick(sft.RECIPE, options_for(sft.RECIPE, "sick")))
    if "page" in given.parts:
        found = {
            path.stem.removeprefix("part-"): json.loads(path.read_text()) for path in given.out.glob("part-*.json")
        }
        run = (
            f"{hardware()}; batch {given.batch_size}, learning rate {given.learning_rate:g}, LoRA rank {given.rank}, "
            f"{given.questions} test questions"
        )
        (given.out / "units.md").write_text(in_markdown(found, run))
        print(in_markdown(found, run))


def in_markdown(results: dict[str, Any], run: str) -> str:
    """The page of results: scores, speed, and the sick configuration."""
    lines = [f"# Unit conversion: SFT, CoT and RFT, {time.strftime('%Y-%m-%d')}", "", f"{run}.", ""]
    lines += ["| run | steps | accuracy before | after | answer_rate before | after | samples/s | refused | bad |"]
    lines += ["|---" * 9 + "|"]
    for name in ("sft", "sft_fp32", "cot", "rft"):
        found = results.get(name, {"failed": "not run"})
        if "scores" not in found:
            lines.append(f"| {name} | {found['failed']} |" + " - |" * 7)
            continue
        before, after = found["scores"].values()
        trained = found["trained"]
        lines.append(
            f"| {name} | {trained['steps']} | {before['accuracy']:.3f} | {after['accuracy']:.3f} | "
            f"{before['answer_rate']:.3f} | {after['answer_rate']:.3f} | {trained['samples_per_second']:.0f} | "
            f"{trained['refused']} | {trained['non_finite_weights']} |"
        )
    lines += ["", "| a few steps of SFT under guard | samples/s |", "|---|---|"]
    for name, found in sorted(results.items()):
        if name.startswith("speed"):
            told = f"{found['samples_per_second']:.0f}" if "samples_per_second" in found else found["failed"]
            lines.append(f"| {name.removeprefix('speed ')} | {told} |")
    sick = results.get("sick", {})
    if "incident" in sick:
        lines += ["", "The sick configuration:", "", "| step | plain loss | plain grad_norm | with the remedy |"]
        lines += ["|---|---|---|---|"]
        cured = {row["step"]: row for row in sick["cured"]}
        lines += [
            f"| {row['step']} | {row['loss'][:6]} | {row['grad_norm'][:6]} | "
            f"{cured[row['step']]['loss'][:6] if row['step'] in cured else '-'} |"
            for row in sick["plain"]
        ]
        lines += ["", f"{sick['model']}. {sick['incident']} Gone on with: {sick['applied_remedy']}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
