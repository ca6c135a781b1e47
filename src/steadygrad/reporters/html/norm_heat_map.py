"""The norms of every tensor over the run, as bytes a page can colour."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ..run_data.norm_matrix import NormMatrix, grouped
from ..terminal.console import shown

MISSING, ZERO, FIRST, LAST, INFINITE, NOT_A_NUMBER = 0, 1, 2, 253, 254, 255
"""What a byte means: nothing measured, exactly zero, FIRST to LAST from the smallest to the largest on a log scale."""
MAX_ROWS = 1000
ROWS_AT_A_GLANCE = 40
DECADES = 9


def heat_data(heat: NormMatrix) -> dict[str, Any] | None:
    """Names, first steps and coded norms, by layer for a glance and by tensor for a close look; None without norms."""
    names, steps, matrix = heat.table()
    if not len(steps):
        return None
    low, high = _range(matrix)
    every = grouped(names, matrix, limit=MAX_ROWS)
    glance = grouped(names, matrix, limit=ROWS_AT_A_GLANCE)
    levels = [glance] if len(glance[0]) == len(every[0]) else [glance, every]
    return {
        "steps": steps.tolist(),
        "width": heat.width,
        "low": low,
        "high": high,
        "tensors": len(names),
        "levels": [
            {"names": [shown(name, limit=200) for name in kept], "codes": _coded(values, low, high)}
            for kept, values in levels
        ],
    }


def _range(matrix: Any) -> tuple[float, float]:
    """The powers of ten between which colours run."""
    positive = matrix[np.isfinite(matrix) & (matrix > 0)]
    if not len(positive):
        return -1.0, 0.0
    powers = np.log10(positive.astype(np.float64))
    # A handful of vanishing or exploding norms must not push all the others into one colour.
    low, high = float(np.quantile(powers, 0.005)), float(np.quantile(powers, 0.999))
    low = max(low, high - DECADES)
    return (low, high) if high - low > 0.1 else (low - 0.5, high + 0.5)


def _coded(matrix: Any, low: float, high: float) -> str:
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.log10(np.where(matrix > 0, matrix, 1.0).astype(np.float64))
        share = np.clip((powers - low) / (high - low), 0.0, 1.0)
        codes = FIRST + np.round(share * (LAST - FIRST))
    codes = np.where(np.isfinite(matrix), codes, FIRST)
    codes = np.where(matrix == 0, ZERO, np.where(matrix < 0, MISSING, codes))
    codes = np.where(np.isinf(matrix), INFINITE, np.where(np.isnan(matrix), NOT_A_NUMBER, codes))
    return base64.b64encode(codes.astype(np.uint8).tobytes()).decode("ascii")
