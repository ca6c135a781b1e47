"""Which changes of a tensor are a memory fault's, and which may be a program's."""

from __future__ import annotations

import math

import pytest
import torch

from steadygrad.detect.tensors.changed_bits import fault_in
from steadygrad.testing.fault_kinds import Flip, flip_bits

WHOLE = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}


def values(dtype: torch.dtype, count: int = 100) -> torch.Tensor:
    return torch.linspace(0.013, 0.37, count, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", WHOLE)
def test_the_sign_and_every_exponent_bit_are_seen_in_every_type(dtype: torch.dtype) -> None:
    size = WHOLE[dtype]
    exponent = {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8, torch.float64: 11}[dtype]
    for bit in range(size - 1 - exponent, size):
        old = values(dtype)
        new = old.clone()
        flip_bits(new, Flip(place=40, mask=1 << bit))
        change = fault_in(old, new)
        assert change is not None, bit
        assert change.places == (40,)
        assert change.old == (float(old[40]),)


@pytest.mark.parametrize("written", [0.0, 1.0, -1e9, 0.25, math.inf, math.nan, torch.finfo(torch.float32).max])
def test_a_number_that_a_program_has_in_its_text_is_the_programs(written: float) -> None:
    old = values(torch.float32)
    new = old.clone()
    new[7] = written
    assert fault_in(old, new) is None


def test_what_changes_in_two_places_apart_or_beyond_a_warp_is_the_programs() -> None:
    old = values(torch.float32)
    for places in ([3, 70], list(range(20, 60)), [31, 32]):
        new = old.clone()
        new[places] *= 1234.567
        assert fault_in(old, new) is None


def test_neighbours_that_change_by_other_bits_each_are_the_programs() -> None:
    old = values(torch.float32)
    new = old.clone()
    new[64:72] = torch.linspace(0.2, -0.31, 8)
    assert fault_in(old, new) is None


def test_nothing_changed_is_no_fault() -> None:
    old = values(torch.float32)
    assert fault_in(old, old.clone()) is None
