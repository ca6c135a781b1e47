"""What a person reads: the runs side by side, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from recipes.common.plots import lines as curves

from .training import Result

HEADER = (
    "seed", "objective", "steps", "best perplexity", "at step", "final", "bits a byte", "success", "refused",
    "scale skips", "bad weights", "largest norm", "peak GPU", "seconds",
)  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """A Markdown table, one run a line."""
    rows = [HEADER, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _row(result: Result) -> tuple[str, ...]:
    memory = f"{result.peak_bytes / 2**30:.2f} GB" if result.peak_bytes else "-"
    return (
        str(result.seed), result.name, str(result.curve[-1][0] if result.curve else 0), f"{result.best:.1f}",
        str(result.best_step), f"{result.final:.1f}", f"{result.bits_per_byte:.3f}",
        f"{100 * result.success_rate:.1f} %", str(result.refused), str(result.scale_skips), str(result.bad_updates),
        f"{result.largest_norm:.2f}", memory, f"{result.seconds:.0f}",
    )  # fmt: skip


def compare(results: Sequence[Result]) -> dict[str, float | int]:
    """KD against CE of the same seed, by the best and by the last validation perplexity; ratios below 1 favour KD."""
    ce = {result.seed: result for result in results if result.name == "ce"}
    pairs = [(result, ce[result.seed]) for result in results if result.name == "kd" and result.seed in ce]
    if not pairs:
        return {}
    return {
        "seeds": len(pairs),
        "kd_better_best": sum(kd.best < other.best for kd, other in pairs),
        "kd_better_final": sum(kd.final < other.final for kd, other in pairs),
        "best_ratio": statistics.geometric_mean(kd.best / other.best for kd, other in pairs),
        "final_ratio": statistics.geometric_mean(kd.final / other.final for kd, other in pairs),
        "success_rate": min(kd.success_rate for kd, _ in pairs),
        "bad_updates": sum(kd.bad_updates for kd, _ in pairs),
    }


def verdict(results: Sequence[Result]) -> str:
    """One sentence: which objective was better at equal steps, and by how much."""
    if not (found := compare(results)):
        return "There is no pair of runs to compare yet."
    seeds, won, ratio = found["seeds"], found["kd_better_best"], found["best_ratio"]
    return (
        f"At equal steps the best validation perplexity with the teacher is {_gap(ratio)} that of the text alone "
        f"(better for {won} of {seeds} seeds; at the last step {_gap(found['final_ratio'])})."
    )


def draw(results: Sequence[Result], path: Path) -> None:
    """Validation perplexity over steps: the mean over seeds of each objective, from the first validation on."""
    names = {"text alone": "ce", "with the teacher": "kd"}
    found: dict[str, list[tuple[float, float]]] = {}
    for label, name in names.items():
        at: dict[int, list[float]] = {}
        for result in results:
            for step, value in result.curve if result.name == name else ():
                at.setdefault(step, []).append(value)
        found[label] = [(step, statistics.fmean(values)) for step, values in sorted(at.items()) if step > 0]
    curves(path, "validation perplexity", {label: points for label, points in found.items() if points})


def _gap(ratio: float) -> str:
    return f"{abs(1 - ratio):.1%} {'below' if ratio < 1 else 'above'}"
