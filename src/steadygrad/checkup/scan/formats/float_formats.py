"""The floating-point formats a checkpoint may hold, described by their bits.

numpy knows neither bfloat16 nor the 8-bit floats, and importing torch takes seconds. But all of these formats order
like integers once the sign is put aside, so one description in terms of bit patterns serves every one of them.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatKind:
    """A floating-point format. All bit patterns are magnitudes: the sign bit is left out.

    `infinity` is None where the format has none. Every magnitude from `first_nan` on is NaN. `absurd` is the first
    magnitude that no healthy tensor holds, None where the format is used at the edge of its range on purpose.
    """

    name: str
    width: int
    """In bytes."""
    mantissa: int
    bias: int
    infinity: int | None
    first_nan: int
    largest: int
    absurd: int | None = None
    count_subnormals: bool = True
    nan_is_minus_zero: bool = False
    """The *fnuz* formats: the pattern of a sign bit and nothing else is their only NaN."""
    signed: bool = True

    # Worked out once, because they are asked for at every block of a file.
    unsigned: Any = field(init=False)
    mask: int = field(init=False)
    """All bits but the sign."""
    sign: int = field(init=False)
    smallest_normal: int = field(init=False)
    not_finite: int = field(init=False)
    """The first magnitude that is infinite or NaN."""

    def __post_init__(self) -> None:
        mask = (1 << (8 * self.width - 1 if self.signed else 8 * self.width)) - 1
        not_finite = self.first_nan if self.infinity is None else self.infinity
        for name, value in (
            ("unsigned", np.dtype(f"<u{self.width}")), ("mask", mask), ("sign", mask + 1),
            ("smallest_normal", 1 << self.mantissa), ("not_finite", not_finite),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def value(self, magnitude: int) -> float:
        """The number a finite magnitude stands for."""
        exponent, fraction = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if not self.signed:  # e8m0: an exponent and nothing else, so that even the pattern 0 is a power of two
            return math.ldexp(1.0, exponent - self.bias)
        if exponent == 0:
            return math.ldexp(fraction, 1 - self.bias - self.mantissa)
        return math.ldexp((1 << self.mantissa) | fraction, exponent - self.bias - self.mantissa)


def _bits32(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


# From here on the square overflows float32, and with it every norm and every second moment.
_SQUARE_OVERFLOWS = _bits32(math.sqrt(float(np.finfo(np.float32).max))) + 1

FLOAT64 = FloatKind(
    name="float64", width=8, mantissa=52, bias=1023, infinity=0x7FF << 52, first_nan=(0x7FF << 52) + 1,
    largest=(0x7FF << 52) - 1, absurd=(0x7F + 1023 + 1) << 52,
)  # fmt: skip
FLOAT32 = FloatKind(
    name="float32", width=4, mantissa=23, bias=127, infinity=0x7F800000, first_nan=0x7F800001,
    largest=0x7F7FFFFF, absurd=_SQUARE_OVERFLOWS,
)  # fmt: skip
BFLOAT16 = FloatKind(
    name="bfloat16", width=2, mantissa=7, bias=127, infinity=0x7F80, first_nan=0x7F81,
    largest=0x7F7F, absurd=(_SQUARE_OVERFLOWS >> 16) + 1,
)  # fmt: skip
# Half precision ends at 65,504: what reaches 32,768 is one doubling away from infinity.
FLOAT16 = FloatKind(
    name="float16", width=2, mantissa=10, bias=15, infinity=0x7C00, first_nan=0x7C01, largest=0x7BFF, absurd=0x7800
)
# 8-bit floats are scaled to fill their range, subnormals and all: neither is a sign of trouble.
E4M3 = FloatKind(
    name="float8_e4m3fn", width=1, mantissa=3, bias=7, infinity=None, first_nan=0x7F, largest=0x7E,
    count_subnormals=False,
)  # fmt: skip
E5M2 = FloatKind(
    name="float8_e5m2", width=1, mantissa=2, bias=15, infinity=0x7C, first_nan=0x7D, largest=0x7B,
    count_subnormals=False,
)  # fmt: skip
E4M3_FNUZ = FloatKind(
    name="float8_e4m3fnuz", width=1, mantissa=3, bias=8, infinity=None, first_nan=0x80, largest=0x7F,
    count_subnormals=False, nan_is_minus_zero=True,
)  # fmt: skip
E5M2_FNUZ = FloatKind(
    name="float8_e5m2fnuz", width=1, mantissa=2, bias=16, infinity=None, first_nan=0x80, largest=0x7F,
    count_subnormals=False, nan_is_minus_zero=True,
)  # fmt: skip
E8M0 = FloatKind(
    name="float8_e8m0fnu", width=1, mantissa=0, bias=127, infinity=None, first_nan=0xFF, largest=0xFE,
    count_subnormals=False, signed=False,
)  # fmt: skip

FLOATS = {
    kind.name: kind
    for kind in (FLOAT64, FLOAT32, BFLOAT16, FLOAT16, E4M3, E5M2, E4M3_FNUZ, E5M2_FNUZ, E8M0)
}  # fmt: skip
# A complex number is two floats side by side, and bad if either is.
COMPLEX = {"complex32": FLOAT16, "complex64": FLOAT32, "complex128": FLOAT64}
# Bytes a value, for types in which every pattern is a number.
INTEGERS = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "quint8": 1, "qint8": 1, "qint32": 4, "bits8": 1, "bits16": 2, "float4_e2m1fn_x2": 1,
}  # fmt: skip


_SHORT_NAMES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}


def float_named(name: str) -> str:
    """The name used here for a type as people write it: torch.bfloat16 and bf16 are bfloat16. Raises UsageError."""
    short = name.removeprefix("torch.")
    found = _SHORT_NAMES.get(short, short)
    if found not in FLOATS:
        raise UsageError(f"{name} is no floating-point type known here: choose from {', '.join(FLOATS)}.")
    return found


def bytes_a_value(dtype: str) -> int | None:
    """How many bytes one value takes; None for a type no one here has heard of."""
    if dtype in FLOATS:
        return FLOATS[dtype].width
    if dtype in COMPLEX:
        return 2 * COMPLEX[dtype].width
    return INTEGERS.get(dtype)


def float_kind(dtype: str) -> FloatKind | None:
    """How to read the bits of this type; None where no pattern of them can be bad."""
    return FLOATS.get(dtype) or COMPLEX.get(dtype)
