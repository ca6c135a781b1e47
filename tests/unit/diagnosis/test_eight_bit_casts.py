"""A cast to an 8-bit float that overflows: the repairs that are tried where it stands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.interventions.eight_bit_casts import left_out, own_scale, saturated
from steadygrad.diagnosis.remedies.suggested_line import with_cast_bounds

SMALL = torch.float8_e4m3fnuz
VALUES = torch.tensor([1.0, -3.0, 1000.0])


def test_a_saturated_cast_gives_the_largest_number_and_leaves_the_others() -> None:
    assert VALUES.to(SMALL).float().isnan().any()
    assert saturated(Tensor.to, (VALUES, SMALL), {}).float().tolist() == [1.0, -3.0, 240.0]
    assert saturated(Tensor.to, (VALUES,), {"dtype": SMALL}).float().tolist() == [1.0, -3.0, 240.0]


def test_what_is_written_into_an_eight_bit_tensor_is_saturated_too() -> None:
    stored = torch.zeros(3).to(SMALL)
    saturated(Tensor.copy_, (stored, VALUES), {})
    assert stored.float().tolist() == [1.0, -3.0, 240.0]


def test_a_scale_from_the_tensor_itself_keeps_every_value_within_the_rounding_of_the_format() -> None:
    values = torch.tensor([100.0, -250.0, 1000.0])
    rounded = own_scale(Tensor.to, (values, SMALL), {})
    assert rounded.dtype is torch.float32
    assert torch.allclose(rounded, values, rtol=1 / 16)
    assert own_scale(Tensor.to, (torch.zeros(3), SMALL), {}).tolist() == [0.0, 0.0, 0.0]


def test_a_cast_that_is_left_out_gives_the_values_as_they_are() -> None:
    assert torch.equal(left_out(Tensor.to, (VALUES, SMALL), {}), VALUES)


@pytest.mark.parametrize("operate", [saturated, own_scale, left_out])
def test_other_casts_and_calls_stay_as_they_are(operate: Any) -> None:
    assert torch.equal(operate(Tensor.to, (VALUES, torch.float64), {}), VALUES.double())
    assert torch.equal(operate(torch.mul, (VALUES, VALUES), {}), VALUES * VALUES)
    small = torch.ones(3).to(SMALL)
    assert operate(Tensor.to, (small, torch.float32), {}).tolist() == [1.0, 1.0, 1.0]


def test_the_bounds_of_the_format_are_written_in_front_of_the_cast() -> None:
    line = "small = (x * scale).to(torch.float8_e4m3fn)  # why"
    assert with_cast_bounds(line, 448.0) == "small = (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)"
    assert with_cast_bounds("y = x.to(torch.float32)", 448.0) is None


def rounded_with(scale: float) -> Any:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        out = model(batch)
        small = (out.detach() * scale).to(torch.float8_e4m3fnuz)
        return (out + (small.float() / scale - out).detach()).square().mean()

    return loss_fn


def test_for_a_scale_that_does_not_fit_the_cast_itself_is_repaired(make_replayable: Any) -> None:
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    batches = [torch.ones(4, 3) for _ in range(5)]
    batches[2][1] = 100.0
    found = diagnose(make_replayable(model, rounded_with(4.0), batches, step=2))
    assert found.cause is not None
    assert found.cause.slug == "fp8_overflow"
    assert found.rows == (1,)
    held = {trial.remedy.slug for trial in found.trials if trial.verified}
    assert {"clamp", "own_scale", "upcast_module"} <= held
    (line,) = [trial.remedy.code_change for trial in found.trials if trial.remedy.slug == "clamp"]
    assert line == "small = (out.detach() * scale).clamp(-240, 240).to(torch.float8_e4m3fnuz)"
