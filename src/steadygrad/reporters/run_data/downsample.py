"""Fewer points to draw, and no extreme lost: every stretch of steps keeps its lowest, mean and highest value."""

from __future__ import annotations

from typing import Any

import numpy as np

Points = dict[str, Any]


def sampled(steps: Any, values: Any, *, limit: int) -> Points:
    """At most `limit` stretches of equally many steps as lists `x`, `mid`, and, where a stretch is more than one step,
    `low` and `high`. A stretch without a finite value is None: a gap in the line.

    Steps may repeat or go back, as they do after a resume; they are put in order.
    """
    order = np.argsort(steps, kind="stable")
    steps, values = np.asarray(steps)[order], np.asarray(values, dtype=np.float64)[order]
    finite = np.isfinite(values)
    if len(steps) <= limit:
        return {"x": steps.astype(np.int64).tolist(), "mid": _short(np.where(finite, values, np.nan))}
    starts = np.linspace(0, len(steps), limit, endpoint=False).astype(np.int64)
    count = np.add.reduceat(finite.astype(np.int64), starts)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    # Summed as a share of the largest magnitude: a sum of large finite numbers must not overflow.
    scale = max(float(np.abs(values[finite]).max(initial=0.0)), np.finfo(np.float64).tiny)
    total = np.add.reduceat(np.where(finite, values, 0.0) / scale, starts)
    mean = np.clip(total / np.maximum(count, 1) * scale, low, high)
    low, mean, high = (np.where(count > 0, numbers, np.nan) for numbers in (low, mean, high))
    return {
        "x": steps[starts].astype(np.int64).tolist(),
        "low": _short(low),
        "mid": _short(mean),
        "high": _short(high),
        "stretch": len(steps) / limit,
    }


def moving_mean(steps: Any, values: Any, *, points: Points) -> list[float | None]:
    """The mean of the finite values around every point that `sampled` chose, over a sixtieth of all steps."""
    order = np.argsort(steps, kind="stable")
    values = np.asarray(values, dtype=np.float64)[order]
    finite = np.isfinite(values)
    scale = max(float(np.abs(values[finite]).max(initial=0.0)), np.finfo(np.float64).tiny)
    sums = np.concatenate(([0.0], np.cumsum(np.where(finite, values, 0.0) / scale)))
    counts = np.concatenate(([0], np.cumsum(finite)))
    half = mean_window(len(values)) // 2
    centres = np.linspace(0, len(values), len(points["x"]), endpoint=False).astype(np.int64)
    begins, ends = np.maximum(0, centres - half), np.minimum(len(values), centres + half + 1)
    among = counts[ends] - counts[begins]
    means = (sums[ends] - sums[begins]) / np.maximum(among, 1) * scale
    return _short(np.where(among > 0, means, np.nan))


def mean_window(num_steps: int) -> int:
    """How many steps `moving_mean` takes together."""
    return 2 * max(1, num_steps // 120) + 1


def success_rate(applied: Any, overflow: Any, *, window: int = 100) -> Any:
    """The share of the last `window` steps that were applied, at every step, without those the loss scale refused."""
    done = np.concatenate(([0], np.cumsum(applied)))
    counted = np.concatenate(([0], np.cumsum(~overflow)))
    ends = np.arange(1, len(applied) + 1)
    begins = np.maximum(0, ends - window)
    among = counted[ends] - counted[begins]
    return np.where(among > 0, (done[ends] - done[begins]) / np.maximum(among, 1), 1.0)


def _short(values: Any) -> list[float | None]:
    """Five significant digits, which is finer than a pixel, and None for what is not finite."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
