"""The figures of docs/recipes/units.md, taken in one process and within a number of seconds.

    python -m recipes.units.measure --out results --seconds 240

First FP32 beside BF16 with FP32 trainable weights: a short SFT in each, with its speed and its accuracy. Then SFT, CoT
and RFT as the recipes do them, with as many steps as fit, and the sick configuration. Every part is written as soon as
it is there, and a part that fails is told and passed over.
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
from .command import Recipe, asked_of, parser, two_sides
from .conversions import drawn
from .evaluation import score
from .report import hardware
from .sick import show_sick
from .training import Collate, Settings, arguments_for, seeded

WARM = 3


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


def short_run(
    options: Any, *, precision: str, batch: int, steps: int, checkpointing: bool, test: bool
) -> dict[str, Any]:
    """A short guarded SFT: the samples of its median step in a second and, if asked, how well it answers then."""
    recipe = sft.RECIPE
    settings = Settings(
        batch_size=batch, precision=precision, rank=options.rank, max_steps=steps, logging_steps=10, warmup_steps=5,
        learning_rate=options.learning_rate, gradient_checkpointing=checkpointing,
    )  # fmt: skip
    training, testing = two_sides(recipe, options)
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
    with sg.attach(trainer, run_dir=out / "run"):
        trainer.train()
    found: dict[str, Any] = {"samples_per_second": batch / statistics.median(clock.seconds)}
    if test:
        model.save_pretrained(out / "adapter")
        found["accuracy"] = score(asked_of(recipe, options, out / "adapter"), testing, max_new_tokens=24).accuracy
    return found


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--seconds", type=float, default=240)
    asked.add_argument("--model")
    asked.add_argument("--cache")
    asked.add_argument("--batch-size", type=int, default=512)
    asked.add_argument("--learning-rate", type=float, default=1e-3)
    asked.add_argument("--rank", type=int, default=32)
    asked.add_argument("--questions", type=int, default=500)
    asked.add_argument("--short", type=int, default=40, help="steps of the runs that compare precisions")
    asked.add_argument("--sampled", type=int, default=1000, help="questions that RFT samples replies to")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + given.seconds
    results: dict[str, Any] = {
        "hardware": hardware(),
        "date": time.strftime("%Y-%m-%d"),
        "run": f"{Path(given.model).name if given.model else 'SmolLM2-135M-Instruct'}, batch {given.batch_size} "
        f"(CoT and RFT half of it), learning rate {given.learning_rate:g}, LoRA rank {given.rank}, "
        f"{given.questions} test questions",
    }

    def left() -> float:
        return float(ends - time.monotonic())

    def part(name: str, make: Callable[[], Any]) -> Any:
        started = time.monotonic()
        try:
            results[name] = make()
        except Exception as fault:  # the other parts are worth having
            traceback.print_exc()
            results[name] = {"failed": f"{type(fault).__name__}: {fault}"}
        print(f"## {name}: {time.monotonic() - started:.1f} s, {left():.0f} s left", flush=True)
        (given.out / "units.json").write_text(json.dumps(results, indent=2))
        (given.out / "units.md").write_text(in_markdown(results))
        return results[name]

    def options_for(recipe: Recipe, name: str, *words: str) -> Any:
        shared = ["--questions", str(given.questions), "--rank", str(given.rank)]
        shared += ["--batch-size", str(given.batch_size), "--learning-rate", str(given.learning_rate)]
        for key in ("model", "cache"):
            shared += [f"--{key}", getattr(given, key)] if getattr(given, key) else []
        options = parser(recipe).parse_args(["train", "--no-gradient-checkpointing", *shared, *words])
        options.out = given.out / "work" / name
        return options

    def compared(batch: int, steps: int, *, checkpointing: bool = False, test: bool = False) -> None:
        how = f"batch {batch}, {steps} steps{', gradient checkpointing' if checkpointing else ''}"
        for precision in ("bf16", "fp32"):
            run = partial(
                short_run, options_for(sft.RECIPE, "short"), precision=precision, batch=batch, steps=steps,
                checkpointing=checkpointing, test=test,
            )  # fmt: skip
            part(f"speed {precision}, {how}", run)

    compared(given.batch_size, given.short, test=True)
    known = results.get(f"speed bf16, batch {given.batch_size}, {given.short} steps", {})
    rate = known.get("samples_per_second", 3.0 * given.batch_size) / given.batch_size
    # Rows of worked steps are about twice as long and taken half as many at a time: a step costs about the same. What
    # is not training, namely tests, sampling, loading and the sick run, takes some 80 seconds on one GPU.
    steps = int(max(10.0, (left() - 80.0) * rate / (1 + 0.6 + 0.17)))
    print(f"## {steps} steps at {rate:.1f} steps/s")
    half, bf16 = ("--batch-size", str(max(1, given.batch_size // 2))), ("--precision", "bf16")
    for recipe, name, share in ((sft.RECIPE, "sft", 1.0), (cot.RECIPE, "cot", 0.6)):
        words = [*bf16, *(half if name == "cot" else ()), "--max-steps", str(max(5, int(steps * share)))]
        part(f"{name} bf16", partial(sft.train, recipe, options_for(recipe, name, *words)))
    few = ["--max-steps", str(max(5, int(steps * 0.17))), "--samples", str(given.sampled), "--learning-rate", "2e-4"]
    start = ["--start", str(given.out / "work" / "cot")]
    part("rft bf16", lambda: rft.train(rft.RECIPE, options_for(rft.RECIPE, "rft", *bf16, *half, *few, *start)))
    part("sick", lambda: show_sick(sft.RECIPE, options_for(sft.RECIPE, "sick")))
    if left() > 20:
        compared(32, 12, checkpointing=True)
    print(in_markdown(results))


def in_markdown(results: dict[str, Any]) -> str:
    """The page of results: scores, speed, and the sick configuration."""
    lines = [
        f"# Unit conversion: SFT, CoT and RFT, {results['date']}",
        "",
        f"{results['hardware']}; {results['run']}.",
        "",
    ]
    lines += ["| run | steps | accuracy before | after | answer_rate before | after | samples/s | refused | bad |"]
    lines += ["|---" * 9 + "|"]
    for name in ("sft bf16", "cot bf16", "rft bf16"):
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
    lines += ["", "| short SFT under guard | samples/s | accuracy after it |", "|---|---|---|"]
    for name, found in results.items():
        if name.startswith("speed") and "samples_per_second" in found:
            accuracy = f"{found['accuracy']:.3f}" if "accuracy" in found else "-"
            lines.append(f"| {name.removeprefix('speed ')} | {found['samples_per_second']:.0f} | {accuracy} |")
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
