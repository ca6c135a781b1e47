"""What `sg.attach(trainer)` costs beside the same transformers Trainer alone, in one run.

    python -m benchmarks.trainer_overhead                      # the model that fits this machine
    python -m benchmarks.trainer_overhead --rounds 15 --json benchmarks/results/trainer-overhead-NAME.json

One attached trainer, whose guard looks away in every other block of steps; then the trainer's own NaN filter is on,
as it is without a guard. So both sides have one model, one thread and one memory, and drift of the machine hits both
alike. (Two trainers taking turns in two threads gave ratios that moved by several per cent from run to run, more than
what is measured.) The figure is the median over rounds of attached divided by alone. On a GPU it is wall time with
the device synchronised at both ends; on a CPU it is the processor time of the whole process, because wall time on a
machine that others use says more about them. All of the guard is in it: journal, snapshots and vitals.

On a CPU the guard's own time is measured too: the time of the thread inside everything that `attach` puts around the
trainer, less what the trainer's own methods take in there, and less the trainer's own clipping, which the guard's
measurement replaces; the journal's thread is added.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import steadygrad as sg
from steadygrad.integrations.loops.patching import Patches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORK: dict[str, dict[str, Any]] = {
    "gpt_5m": {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 8192, "length": 128, "batch": 4},
    "gpt2_124m": {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "length": 1024, "batch": 8},
}
ALONE, ATTACHED = "Trainer alone", "Trainer, sg.attach"
EARLY = 12  # steps before measuring: past the early audits


class Blocks(TrainerCallback):
    """Lets the guard look away in every other block of steps, in the order on off off on, and times each block."""

    def __init__(self, trainer: Trainer, guard: Any, steps: int) -> None:
        self.trainer, self.guard, self.steps = trainer, guard, steps
        self.times: dict[str, list[float]] = {ALONE: [], ATTACHED: []}
        self._since = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done, partial = divmod(state.global_step - EARLY, self.steps)
        if state.global_step < EARLY or partial:
            return
        now = clock()
        if done:
            self.times[ALONE if self._away(done - 1) else ATTACHED].append((now - self._since) / self.steps * 1e3)
        self.guard._replay.active = self.trainer.args.logging_nan_inf_filter = self._away(done)
        self._since = clock()

    def _away(self, block: int) -> bool:
        return block % 4 in (1, 2)


def make_trainer(
    work: dict[str, Any], folder: Path, *, accumulation: int, bf16: bool, total: int, **more: Any
) -> Trainer:
    torch.manual_seed(0)
    shape = {key: value for key, value in work.items() if key not in ("length", "batch")}
    model = GPT2LMHeadModel(GPT2Config(n_positions=work["length"], bos_token_id=0, eos_token_id=0, **shape))
    rows = torch.randint(work["vocab_size"], (work["batch"] * 8, work["length"])).tolist()
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=total, per_device_train_batch_size=work["batch"], learning_rate=1e-4,
        gradient_accumulation_steps=accumulation, logging_steps=10, save_strategy="no", report_to="none", bf16=bf16,
        disable_tqdm=True, use_cpu=DEVICE == "cpu", **more,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.log = lambda *_args, **_kwargs: None  # printing is not what is measured
    return trainer


def clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure(name: str, *, rounds: int, steps: int, accumulation: int, bf16: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        total = EARLY + 2 * rounds * steps
        trainer = make_trainer(WORK[name], Path(folder), accumulation=accumulation, bf16=bf16, total=total)
        with sg.attach(trainer, run_dir=Path(folder) / "run") as guard:
            blocks = Blocks(trainer, guard, steps)
            trainer.add_callback(blocks)
            trainer.train()
            summary = guard.summary()
    assert summary["guard_faults"] == {}
    assert summary["steps"] == EARLY + rounds * steps
    return {key: _figures(values, blocks.times[ALONE]) for key, values in blocks.times.items()}


class OwnTime:
    """The thread's time inside wrapped methods, without the methods themselves."""

    def __init__(self) -> None:
        self.total = 0.0
        self._inside: list[float] = []

    def around(self, around: Callable[..., Any]) -> Callable[..., Any]:
        def timed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def inner(*inner_args: Any, **inner_kwargs: Any) -> Any:
                start = time.thread_time()
                self._inside.append(0.0)
                try:
                    return original(*inner_args, **inner_kwargs)
                finally:
                    self._inside.pop()
                    self._inside[-1] += time.thread_time() - start

            start = time.thread_time()
            self._inside.append(0.0)
            try:
                return around(inner, *args, **kwargs)
            finally:
                self.total += time.thread_time() - start - self._inside.pop()

        return timed


def own_time(name: str, *, accumulation: int, bf16: bool, early: int = 10, steps: int = 20) -> dict[str, float]:
    """What the guard adds to a step, in milliseconds of its thread, past the early audits."""
    watch, marks, clips = OwnTime(), [], []
    plain_wrap = Patches.wrap

    class Mark(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            marks.append((time.thread_time(), watch.total, time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"accumulation": accumulation, "bf16": bf16, "total": early + steps + 1}
        alone = make_trainer(WORK[name], Path(folder), **options)
        clip = alone.accelerator.clip_grad_norm_

        def timed_clip(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return clip(*args, **kwargs)
            finally:
                clips.append(time.thread_time() - start)

        alone.accelerator.clip_grad_norm_ = timed_clip
        alone.train()
        trainer = make_trainer(WORK[name], Path(folder), **options)
        Patches.wrap = lambda self, thing, method, around: plain_wrap(self, thing, method, watch.around(around))
        try:
            with sg.attach(trainer, run_dir=Path(folder) / "run"):
                trainer.add_callback(Mark())
                trainer.train()
        finally:
            Patches.wrap = plain_wrap
    thread, own, process = ((marks[early + steps][i] - marks[early][i]) / steps * 1e3 for i in (0, 1, 2))
    background, replaced = process - thread, statistics.median(clips) * 1e3
    added = own + background - replaced
    return {
        "step_ms": process, "own_ms": own, "background_ms": background, "replaced_ms": replaced,
        "share": added / (process - added),
    }  # fmt: skip


def _figures(values: list[float], base: list[float]) -> dict[str, Any]:
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "ms": statistics.median(values), "ratio": statistics.median(ratios), "quartiles": [quartiles[0], quartiles[2]],
        "overall": sum(values) / sum(base), "best": min(values) / min(base),
    }  # fmt: skip


def hardware() -> str:
    if DEVICE == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, wall time"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} thread, torch {torch.__version__}, processor time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", choices=sorted(WORK), default="gpt2_124m" if DEVICE == "cuda" else "gpt_5m")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10 if DEVICE == "cuda" else 2)
    parser.add_argument("--accumulation", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    results: dict[str, Any] = {"hardware": hardware(), "work": arguments.work}
    for accumulation in arguments.accumulation:
        rows = measure(
            arguments.work, rounds=arguments.rounds, steps=arguments.steps, accumulation=accumulation,
            bf16=DEVICE == "cuda",
        )  # fmt: skip
        results[f"accumulation {accumulation}"] = rows
        print(f"\n{arguments.work}, accumulation {accumulation}, {hardware()}")
        for key, row in rows.items():
            low, high = row["quartiles"]
            print(
                f"  {key:40s} {row['ms']:9.2f} ms a step  x{row['ratio']:.4f}  [{low:.4f}, {high:.4f}]"
                f"  all rounds x{row['overall']:.4f}  fastest rounds x{row['best']:.4f}"
            )
        if DEVICE == "cpu":
            own = own_time(arguments.work, accumulation=accumulation, bf16=False)
            results[f"accumulation {accumulation}, own time"] = own
            print(
                f"  the guard's own time {own['own_ms']:.2f} ms a step, of which {own['replaced_ms']:.2f} ms replace "
                f"the trainer's clipping, and {own['background_ms']:.2f} ms in the journal's thread: "
                f"{own['share'] * 100:+.2f} % of a step"
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
