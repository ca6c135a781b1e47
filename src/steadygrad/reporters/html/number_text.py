"""Numbers as a page shows them."""

from __future__ import annotations

import math

from ..terminal.console import number


def figure(value: float | None) -> str:
    """Four digits that count, thousands set apart, powers of ten only where they help: 61,200, 0.000283, 3.4e38."""
    if value is None or not math.isfinite(value) or value == 0:
        return number(value)
    size = abs(value)
    if 1000 <= size < 1e7:
        return f"{value:,.0f}"
    if 1e-4 <= size < 1000:
        return f"{value:.4g}"
    mantissa, _, power = f"{value:.3e}".partition("e")
    return f"{float(mantissa):g}e{int(power)}"
