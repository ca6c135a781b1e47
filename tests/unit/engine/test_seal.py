"""Sealing a step on the device: the flag says what the host's rule says, and clipping has torch's bits."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.detect.gradient_norms import ClipRule, GradientProbe, clip_exact
from steadygrad.detect.history import RefusalLimits
from steadygrad.detect.refusal_rule import must_refuse
from steadygrad.engine.step.device_check import DeviceCheck
from steadygrad.engine.step.step_row import RowReader, reading_of
from steadygrad.records import Reading

CPU = torch.device("cpu")
NUMBER = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -3.0, 3.4028234663852886e38])
LIMIT = st.floats(min_value=0.0, max_value=2.0**100, width=32) | st.just(math.inf)


def parameter(values: list[float]) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.zeros(len(values)))
    made.grad = torch.tensor(values)
    return made


@given(grad=NUMBER, losses=st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=3), norm=LIMIT, loss=LIMIT)
def test_the_device_refuses_exactly_what_the_host_would(
    grad: float, losses: list[tuple[float, float]], norm: float, loss: float
) -> None:
    gradients = GradientProbe([parameter([grad])]).measure()
    terms = [{"loss": torch.tensor(a), "aux": torch.tensor(b)} for a, b in losses]
    row = RowReader(["w"], CPU).pack(gradients, terms, None)
    limits = RefusalLimits(norm, loss)
    values = DeviceCheck(CPU).seal(row, limits, refuses=True, rule=None).row_transfer.values()
    reading = reading_of(values, row.layout, step=0, lr=0.1, batch_key=None, limits=limits)
    # The mean of the terms may overflow where each of them is finite; the device judges each of them.
    each_finite = all(abs(x) <= 3.4028234663852886e38 for pair in losses for x in pair)
    means_finite = all(math.isfinite(x) for x in (reading.loss, *reading.terms.values()))
    if each_finite == means_finite:
        assert (values[-1] == 1.0) is must_refuse(reading)
    assert values[-1] in (0.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_row_is_read_as_the_numbers_that_are_packed(dtype: torch.dtype, scaled: bool) -> None:
    gradients = GradientProbe([parameter([0.1, 3.0]), parameter([-7.0])]).measure()
    terms = [{"loss": torch.tensor(0.3, dtype=dtype), "aux": torch.tensor(1e-3)} for _ in range(2)]
    scale = torch.tensor(1024.0) if scaled else None
    reader = RowReader(["v", "w"], CPU)
    row, packed = reader.pack(gradients, terms, scale), reader.pack(gradients, terms, scale)
    assert row.read() == packed.values.tolist()[:-1] == packed.read()
    assert all(type(number) is float for number in row.read())


def test_rows_in_one_place_have_the_numbers_of_the_last_step_and_leave_the_flag_to_be_set() -> None:
    reader, places = RowReader(["w"], CPU), []
    for number in (1.0, 2.0, 3.0):
        gradients = GradientProbe([parameter([number])]).measure()
        row = reader._in_place(reader.pack(gradients, [{"loss": torch.tensor(-number)}], None))
        assert row.stays
        assert row.plain_total
        assert row.values.tolist() == [number, number, -number, 0.0]
        row.values[-1] = 1.0
        places.append(row.values.data_ptr())
    assert len(set(places)) == 1
    wide = reader.pack(GradientProbe([parameter([1.0])]).measure(), [{"loss": torch.tensor(0.5).double()}], None)
    assert reader._in_place(wide) is wide
    assert wide.values.dtype is torch.float64
    assert not wide.plain_total


def test_a_reading_of_a_step_is_the_one_that_its_fields_make() -> None:
    row = RowReader(["w"], CPU).pack(GradientProbe([parameter([3.0])]).measure(), [{"loss": torch.tensor(0.5)}], None)
    reading = reading_of(row.read(), row.layout, step=7, lr=0.1, batch_key="b", limits=RefusalLimits(2.0, 4.0))
    expected = Reading(
        step=7, loss=0.5, grad_norm=3.0, norms=[3.0], names=("w",), lr=0.1, batch_key="b", grad_norm_limit=2.0,
        loss_limit=4.0,
    )  # fmt: skip
    assert (reading, asdict(reading), replace(reading, step=8)) == (
        expected,
        asdict(expected),
        replace(expected, step=8),
    )
    with pytest.raises(FrozenInstanceError):
        reading.loss = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_policy_that_only_observes_never_raises_the_flag(dtype: torch.dtype) -> None:
    row = RowReader(["w"], CPU).pack(
        GradientProbe([parameter([math.nan])]).measure(), [{"loss": torch.tensor(math.nan, dtype=dtype)}], None
    )
    sealed = DeviceCheck(CPU).seal(row, RefusalLimits(), refuses=False, rule=ClipRule(1.0))
    assert float(sealed.flag) == 0.0
    assert sealed.flag.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.01, 3.0])
def test_the_clip_factor_is_torchs_own_to_the_bit(dtype: torch.dtype, size: float) -> None:
    torch.manual_seed(0)
    made = torch.nn.Parameter(torch.zeros(50, dtype=dtype))
    made.grad = (torch.randn(50) * size).to(dtype)
    gradients = GradientProbe([made]).measure()
    assert gradients is not None
    row = RowReader(["w"], CPU).pack(gradients, [{"loss": torch.tensor(1.0)}], None)
    sealed = DeviceCheck(CPU).seal(row, RefusalLimits(), refuses=True, rule=ClipRule(0.7))
    factor = ClipRule(0.7).factor(gradients.total) if sealed.factor is None else sealed.factor
    ours = made.grad * factor
    torch.nn.utils.clip_grad_norm_([made], 0.7, foreach=False)
    assert torch.equal(ours.to(dtype), made.grad)
    # A total in half precision stands widened in the row, so its factor must not be taken from there.
    assert (sealed.factor is None) is (dtype is not torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [1e-3, 0.5, 0.85, 0.899, 0.9, 0.95, 0.999, 1.0, 1.001, 1.5])
@pytest.mark.parametrize("limit", [1e-7, 1e-3, 0.7, 1.0, 50.0])
def test_gradients_are_clipped_to_torchs_own_bits_at_any_norm(dtype: torch.dtype, share: float, limit: float) -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.zeros(33, dtype=dtype)) for _ in range(2))
    direction = torch.nn.functional.normalize(torch.randn(33, dtype=torch.float64), dim=0)
    ours.grad = (direction * share * limit).to(dtype)
    theirs.grad = ours.grad.clone()
    gradients = GradientProbe([ours]).measure()
    assert gradients is not None
    gradients.total_on_host = float(gradients.total)
    clip_exact(gradients, limit)
    torch.nn.utils.clip_grad_norm_([theirs], limit)
    assert torch.equal(ours.grad, theirs.grad)
