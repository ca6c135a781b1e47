"""Trainings that diverge: how many end where their healthy twin ends, plain and guarded, unattended.

    python -m benchmarks.divergence --set tuned
    python -m benchmarks.divergence --set second --out benchmarks/results
    python -m benchmarks.divergence --set rough

The final loss is that of held-out batches. A guarded run counts as recovered where its final loss is at most two per
cent above the healthy twin's, and as worse than plain where it is above the plain run's. The rough trainings have no
flaw: there the guard must change nothing.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import steadygrad as sg

from .diverging import first, fourth, second, third
from .diverging.first import Training

NEAR = 1.02
SETS = {
    "tuned": first.TUNED,
    "unseen": first.UNSEEN,
    "second": second.UNSEEN,
    "third": third.UNSEEN,
    "fourth": fourth.UNSEEN,
    "rough": [*second.HEALTHY, *third.HEALTHY, *fourth.HEALTHY],
}
_HELD_OUT = 24


@dataclass
class Run:
    """A training under way: its parts, made from a seed."""

    training: Training
    seed: int
    flaw: bool

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        g = torch.Generator().manual_seed(self.seed)
        self.model, self.loss, self._draw = self.training.task(g)
        self.optimizer = self.training.optimizer(self.model.parameters(), lr=self.training.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: self.training.rate(step, flaw=self.flaw)
        )
        self.held_out = [self._draw(g) for _ in range(_HELD_OUT)]
        self._batches = torch.Generator().manual_seed(self.seed + 1)

    def batches(self) -> Iterator[Any]:
        first, end = self.training.spoiled if self.flaw else (0, 0)
        for step in itertools.count():
            batch = self._draw(self._batches)
            yield self.training.spoil(batch) if self.training.spoil and first <= step < end else batch

    def final(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = sum(float(self.loss(self.model, batch)) for batch in self.held_out) / _HELD_OUT
        return loss if math.isfinite(loss) else math.inf


def plain(training: Training, seed: int, *, flaw: bool) -> float:
    """The loop as one writes it."""
    run = Run(training, seed, flaw)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[training.precision]
    scaler = torch.amp.GradScaler("cpu") if training.precision == "fp16" else None
    for batch in itertools.islice(run.batches(), training.steps):
        with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
            loss = run.loss(run.model, batch)
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        if scaler is not None:
            scaler.unscale_(run.optimizer)
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), training.clip)
        if scaler is None:
            run.optimizer.step()
        else:
            scaler.step(run.optimizer)
            scaler.update()
        run.schedule.step()
        run.optimizer.zero_grad()
    return run.final()


@dataclass(frozen=True)
class Guarded:
    final: float
    rolled_back: int
    factor: float
    halted: bool
    seconds: float
    reasons: list[str]


def guarded(training: Training, seed: int) -> Guarded:
    """The same loop through `sg.Guard`, with default settings."""
    run = Run(training, seed, True)
    halted, start = False, time.perf_counter()
    guard = sg.Guard(
        run.model, run.optimizer, run.loss, scheduler=run.schedule, max_grad_norm=training.clip,
        precision=training.precision,
    )  # fmt: skip
    try:
        for batch in itertools.islice(run.batches(), training.steps):
            guard.step(batch)
    except sg.TrainingHalted:
        halted = True
    summary = guard.summary()
    reasons = [each.decision.reason for each in guard.incidents if each.decision is not None]
    guard.close()
    return Guarded(
        run.final(), summary["rolled_back"], summary["lr_factor"], halted, time.perf_counter() - start, reasons
    )


@dataclass(frozen=True)
class Row:
    name: str
    healthy: float
    plain: float
    guarded: Guarded

    @property
    def recovered(self) -> bool:
        return self.guarded.final <= NEAR * self.healthy

    @property
    def worse(self) -> bool:
        return self.guarded.final > 1.0001 * self.plain

    def __str__(self) -> str:
        verdict = "within 2 %" if self.recovered else "worse than plain" if self.worse else "no"
        did = f"{self.guarded.rolled_back} rollbacks, rate x{self.guarded.factor:.3g}"
        did += ", halted" if self.guarded.halted else ""
        return f"| {self.name} | {self.healthy:.4g} | {self.plain:.4g} | {self.guarded.final:.4g} | {verdict} | {did} | {self.guarded.seconds:.1f} |"  # noqa: E501


HEAD = "| training | healthy | plain | guarded | recovered | done | s |\n|---|---|---|---|---|---|---|"


def _rough(chosen: list[Training], seed: int, out: Path | None) -> None:
    """Trainings without a flaw: whether each ends, to the bit, as without the guard."""
    lines = []
    for each in chosen:
        alone, run = plain(each, seed, flaw=True), guarded(each, seed)
        touched = run.final != alone or run.rolled_back or run.halted
        lines.append(f"| {each.name} | {alone:.4g} | {run.final:.4g} | {'touched' if touched else 'left alone'} |")
        print(lines[-1], flush=True)
    end = f"{sum('left alone' in line for line in lines)} of {len(lines)} left alone"
    print(end)
    if out:
        text = [f"# Rough trainings that do not diverge (seed {seed})", "",
                f"`python -m benchmarks.divergence --set rough --seed {seed}`: {end}.", "",
                "| training | plain | guarded | |", "|---|---|---|---|", *lines, ""]  # fmt: skip
        (out / "divergence-rough.md").write_text("\n".join(text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="tuned")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--plain", action="store_true", help="only whether they diverge without a guard")
    parser.add_argument("--reasons", action="store_true", help="what the guard did")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    seed = (0 if options.set == "tuned" else 101) if options.seed is None else options.seed
    chosen = [each for each in SETS[options.set] if options.only in each.name]
    if options.set == "rough":
        _rough(chosen, seed, options.out)
        return
    if options.plain:
        for each in chosen:
            healthy, alone = plain(each, seed, flaw=False), plain(each, seed, flaw=True)
            print(f"{each.name:40} healthy {healthy:.4g} plain {alone:.4g}", flush=True)
        return
    rows = []
    print(HEAD)
    for each in chosen:
        row = Row(each.name, plain(each, seed, flaw=False), plain(each, seed, flaw=True), guarded(each, seed))
        rows.append(row)
        print(row, flush=True)
        if options.reasons:
            print("\n".join(f"    {reason}" for reason in row.guarded.reasons))
    end = f"{sum(row.recovered for row in rows)} of {len(rows)} within 2 %, {sum(row.worse for row in rows)} worse than plain"  # noqa: E501
    print(end)
    if options.out:
        command = f"python -m benchmarks.divergence --set {options.set} --seed {seed}"
        text = "\n".join([f"# Trainings that diverge ({options.set}, seed {seed})", "", f"`{command}`: {end}.", "",
                          HEAD, *map(str, rows), ""])  # fmt: skip
        (options.out / f"divergence-{options.set}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
