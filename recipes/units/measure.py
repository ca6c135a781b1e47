"""The figures of docs/recipes/units.md, taken in one process and within a number of seconds.

    python -m recipes.units.measure --out results --seconds 240

First the speed of FP32 beside BF16 with FP32 trainable weights. Then SFT, CoT and RFT as the recipes do them, with as
many steps as fit, the sick configuration, and SFT once more in FP32 with the same steps. Every part is written as soon
as it is there, and a part that fails is told and passed over.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable
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
from .training import Collate, Settings, arguments_for

WARM = 5


class Clock(TrainerCallback):
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


def speed(recipe: Recipe, options: Any, out: Path, *, precision: str, batch: int, checkpointing: bool) -> float:
    """Samples a second of the guarded trainer: the median step of 15."""
    settings = Settings(
        batch_size=batch, precision=precision, rank=options.rank, max_steps=WARM + 15, logging_steps=10,
        gradient_checkpointing=checkpointing,
    )  # fmt: skip
    training, _ = two_sides(recipe, options)
    llm = BaseLLM(options.model, instruction=recipe.instruction, cache=options.cache, dtype=TRAINING_DTYPE[precision])
    pool = drawn(training, None, seed=0)
    rows = llm.rows((str(question), recipe.reply(question)) for question in pool[: 4 * batch])
    clock = Clock()
    arguments = arguments_for(settings, out, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = Trainer(
        model=with_lora(llm.model, rank=settings.rank),
        args=arguments,
        train_dataset=rows,
        data_collator=Collate(llm.tokenizer.pad_token_id),
        callbacks=[clock],
    )
    with sg.attach(trainer, run_dir=out / "speed" / f"{precision}-{batch}-{checkpointing}"):
        trainer.train()
    return batch / statistics.median(clock.seconds)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--seconds", type=float, default=240)
    asked.add_argument("--model")
    asked.add_argument("--cache")
    asked.add_argument("--batch-size", type=int, default=256)
    asked.add_argument("--learning-rate", type=float, default=1e-3)
    asked.add_argument("--rank", type=int, default=32)
    asked.add_argument("--questions", type=int, default=500)
    asked.add_argument("--sampled", type=int, default=2000, help="questions that RFT samples replies to")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + given.seconds
    results: dict[str, Any] = {
        "hardware": hardware(),
        "date": time.strftime("%Y-%m-%d"),
        "run": f"{Path(given.model).name if given.model else 'SmolLM2-135M-Instruct'}, batch {given.batch_size}, "
        f"learning rate {given.learning_rate:g}, LoRA rank {given.rank}, {given.questions} test questions",
    }

    def left() -> float:
        return ends - time.monotonic()

    def part(name: str, make: Callable[[], Any]) -> Any:
        started = time.monotonic()
        try:
            results[name] = make()
        except Exception as fault:  # the other parts are worth having
            traceback.print_exc()
            results[name] = {"failed": f"{type(fault).__name__}: {fault}"}
        print(f"## {name}: {time.monotonic() - started:.1f} s, {left():.0f} s left", flush=True)
        (given.out / "units.json").write_text(json.dumps(results, indent=2))
        return results[name]

    def options_for(recipe: Recipe, name: str, *words: str) -> Any:
        shared = ["--questions", str(given.questions), "--rank", str(given.rank)]
        shared += ["--batch-size", str(given.batch_size), "--learning-rate", str(given.learning_rate)]
        shared += [
            word for key in ("model", "cache") if getattr(given, key) for word in (f"--{key}", getattr(given, key))
        ]
        options = parser(recipe).parse_args(["train", "--no-gradient-checkpointing", *shared, *words])
        options.out = given.out / "work" / name
        return options

    plain = options_for(sft.RECIPE, "speed")
    rates: dict[tuple[str, str], float] = {}
    for batch, checkpointing in ((given.batch_size, False), (32, True)):
        for precision in ("bf16", "fp32"):
            key = f"speed {precision}, batch {batch}, {'with' if checkpointing else 'without'} checkpointing"
            found = part(
                key,
                lambda precision=precision, batch=batch, checkpointing=checkpointing: speed(
                    sft.RECIPE, plain, plain.out, precision=precision, batch=batch, checkpointing=checkpointing
                ),
            )
            if batch == given.batch_size and isinstance(found, float):
                rates[precision, "sft"] = found / batch
    # Worked steps are about twice as long as bare answers. What is not training: tests, sampling, the sick run.
    fast, slow = rates.get(("bf16", "sft"), 5.0), rates.get(("fp32", "sft"), 2.5)
    fast_cot, other = fast / 1.6, 85.0
    # With s steps of SFT, CoT and FP32 and a third of it for RFT, this many fit into the time:
    steps = int(max(10.0, (left() - other) / (1 / fast + 1 / slow + 1.33 / fast_cot)))
    print(f"## {steps} steps each at {fast:.1f} (bf16) and {slow:.1f} (fp32) steps/s")
    many = ("--max-steps", str(steps))

    part("sft bf16", lambda: sft.train(sft.RECIPE, options_for(sft.RECIPE, "sft", "--precision", "bf16", *many)))
    part("cot bf16", lambda: sft.train(cot.RECIPE, options_for(cot.RECIPE, "cot", "--precision", "bf16", *many)))
    start = str(given.out / "work" / "cot")
    few = (
        "--max-steps",
        str(max(5, steps // 3)),
        "--samples",
        str(given.sampled),
        "--start",
        start,
        "--precision",
        "bf16",
    )
    part("rft bf16", lambda: rft.train(rft.RECIPE, options_for(rft.RECIPE, "rft", *few, "--learning-rate", "2e-4")))
    part("sick", lambda: show_sick(sft.RECIPE, options_for(sft.RECIPE, "sick")))
    if left() > steps / slow + 8:
        part("sft fp32", lambda: sft.train(sft.RECIPE, options_for(sft.RECIPE, "sft32", "--precision", "fp32", *many)))
    else:
        results["sft fp32"] = {"failed": "no time left"}
    (given.out / "units.json").write_text(json.dumps(results, indent=2))
    (given.out / "units.md").write_text(in_markdown(results))
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
    for name in ("sft bf16", "cot bf16", "rft bf16", "sft fp32"):
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
    lines += ["", "| speed of the guarded trainer | samples/s |", "|---|---|"]
    lines += [
        f"| {name.removeprefix('speed ')} | {value:.0f} |" if isinstance(value, float) else f"| {name} | failed |"
        for name, value in results.items()
        if name.startswith("speed")
    ]
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
