"""Magnitudes as a count by power of two, from which every question about a dtype can be answered.

A number x lies in bin e if 2^(e-1) <= |x| < 2^e. What underflows in a dtype, or would under some scale, is then a sum
over bins: one pass over a tensor serves all dtypes and all scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

LOWEST, HIGHEST = -150, 130
BINS = HIGHEST - LOWEST + 1


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format: its largest number, and the power of two at and below which numbers become zero."""

    name: str
    torch_dtype: torch.dtype
    largest: float
    vanishes: int
    """Magnitudes below 2^vanishes round to zero: half the smallest subnormal."""


FORMATS = {
    "fp16": Format("fp16", torch.float16, 65504.0, -25),
    "bf16": Format("bf16", torch.bfloat16, 3.3895313892515355e38, -134),
    "fp8_e4m3": Format("fp8_e4m3", torch.float8_e4m3fn, 448.0, -10),
    "fp8_e5m2": Format("fp8_e5m2", torch.float8_e5m2, 57344.0, -17),
}


@dataclass(slots=True)
class RangeTally:
    """Counts of one kind of tensor of one module, added up over its calls in a step."""

    counts: Tensor | None = None
    largest: float = 0.0
    smallest: float = math.inf
    num_elements: int = 0
    num_bad: int = 0
    dtype: str = ""
    seen: int = field(default=0)

    @torch.no_grad()
    def add(self, tensor: Tensor) -> None:
        """Count one tensor. Reads the device."""
        flat = tensor.detach()
        if not flat.is_floating_point() or flat.numel() == 0 or flat.is_sparse:
            return
        self.dtype = str(flat.dtype).removeprefix("torch.")
        flat = flat.reshape(-1).abs().float()
        finite = torch.isfinite(flat)
        self.seen += 1
        self.num_elements += flat.numel()
        self.num_bad += int((~finite).sum())
        used = flat[finite & (flat > 0)]
        if not used.numel():
            return
        exponents = torch.frexp(used).exponent.long().clamp(LOWEST, HIGHEST) - LOWEST
        counts = torch.bincount(exponents, minlength=BINS).cpu()
        self.counts = counts if self.counts is None else self.counts + counts
        self.largest = max(self.largest, float(used.max()))
        self.smallest = min(self.smallest, float(used.min()))

    @property
    def empty(self) -> bool:
        """Nothing other than zero was seen."""
        return self.counts is None

    def headroom(self, form: Format, *, scale: float = 1.0) -> float | None:
        """Doublings left before the largest magnitude overflows; -inf where values were not finite already."""
        if self.num_bad:
            return -math.inf
        return None if self.empty else math.log2(form.largest / (self.largest * scale))

    def vanishing(self, form: Format, *, scale: float = 1.0) -> float:
        """The share of the numbers other than zero that become zero, under a scale that is a power of two."""
        if self.counts is None:
            return 0.0
        last = form.vanishes - round(math.log2(scale)) - LOWEST
        return float(self.counts[: max(0, min(BINS, last + 1))].sum() / self.counts.sum())

    def own_scale(self, form: Format) -> float:
        """The power of two that brings the largest magnitude just under the format's end."""
        return 1.0 if self.empty else 2.0 ** math.floor(math.log2(form.largest / self.largest))


def loss_scale_for(tallies: list[RangeTally]) -> float:
    """The largest power of two, up to GradScaler's 65536, that no gradient overflows under."""
    largest = max((tally.largest for tally in tallies if not tally.empty), default=0.0)
    if largest <= 0.0:
        return 65536.0
    return float(min(65536.0, 2.0 ** math.floor(math.log2(FORMATS["fp16"].largest / largest) - 1.0)))
