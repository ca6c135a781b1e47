"""What a probe says of an 8-bit float under scales per tensor, from earlier batches, and per block of 32."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.checkup.trials.dtype_ranges import FORMATS
from steadygrad.checkup.trials.eight_bit_scales import AmaxHistory, BlockScale, CurrentScale, DelayedScale
from steadygrad.commands import main
from steadygrad.records.checks.probe import Probe, ScaleTrial
from steadygrad.reporters.terminal.print_probe import print_probe

E4M3, E5M2 = FORMATS["fp8_e4m3"], FORMATS["fp8_e5m2"]
PLACE = ("layer", "inputs")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]


def batches(number: int = 4) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(16, 64) for _ in range(number)]


def scaled(found: Probe, scale: str, dtype: str = "fp8_e4m3") -> ScaleTrial:
    trial = next(each for each in found.trials if each.dtype == dtype)
    return next(each for each in trial.scales if each.scale == scale)


# -- healthy


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_a_plain_model_fits_under_every_scale_and_is_left_as_it_is(dtype: str) -> None:
    model, data = Net(), batches()
    before = [p.detach().clone() for p in model.parameters()]
    found = sg.probe(model, loss_fn, data[0], dtypes=(dtype,), earlier=data[1:])
    assert found.trials[0].fits
    assert [each.scale for each in found.trials[0].scales] == ["delayed", "blocks of 32"]
    assert all(each.fits for each in found.trials[0].scales)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    assert not model.up._forward_hooks
    assert not model.up._forward_pre_hooks


def test_earlier_batches_change_nothing_but_the_delayed_scale() -> None:
    data = batches()
    alone = sg.probe(Net(), loss_fn, data[0])
    beside = sg.probe(Net(), loss_fn, data[0], earlier=data[1:])
    assert [each.scale for each in alone.trials[2].scales] == ["blocks of 32"]
    assert [each.scales for each in alone.trials[:2]] == [(), ()]
    assert alone.modules == beside.modules
    for one, two in zip(alone.trials, beside.trials, strict=True):
        assert (one.fits, one.because, one.gradient_cosine, one.vanished) == (
            two.fits, two.because, two.gradient_cosine, two.vanished
        )  # fmt: skip


# -- scales per block


def test_a_block_shares_the_power_of_two_of_the_specification() -> None:
    """OCP MX v1.0: the exponent is floor(log2(amax)) less that of the format's largest number, 8 for e4m3."""
    values = torch.zeros(2, 64)
    values[0, :4] = torch.tensor([3.0, 0.3, -1.01, 1e-6])
    values[0, 32:34] = torch.tensor([500.0, 2.1])
    out = BlockScale().rounded(values, E4M3, PLACE)
    # The first block: 2^(1 - 8). 3 * 128 = 384 is a number of e4m3; 38.4 lies between 36 and 40, whose step is 4, and
    # 129.28 between 128 and 144; 1.28e-4 is less than half of the smallest, 2^-9.
    assert out[0, :4].tolist() == [3.0, 40 / 128, -1.0, 0.0]
    # The second: 2^(8 - 8). 500 is above the end, 448; the step at 2.1 is 0.25.
    assert out[0, 32:34].tolist() == [448.0, 2.0]
    assert not out[1].any()


@pytest.mark.parametrize(("form", "bits"), [(E4M3, 3), (E5M2, 2)])
def test_numbers_of_a_block_near_its_largest_keep_the_bits_of_the_format(form: Any, bits: int) -> None:
    torch.manual_seed(0)
    values = (1 + torch.rand(40, 70)) * torch.exp2(torch.randint(-60, 60, (40, 1)).float())
    out = BlockScale().rounded(values, form, PLACE)
    above = values / torch.exp2(torch.floor(torch.log2(values))) > form.largest / 2.0 ** math.floor(
        math.log2(form.largest)
    )
    error = ((out - values).abs() / values)[~above]
    assert error.max() <= 2.0 ** -(bits + 1)
    assert error.max() > 2.0 ** -(bits + 3)
    assert (out[above] < values[above]).all()


def test_an_outlier_costs_its_own_block_and_with_one_scale_the_whole_tensor() -> None:
    values = torch.full((1, 96), 1e-3)
    values[0, 40] = 1e5
    per_block, per_tensor = (each.rounded(values, E4M3, PLACE) for each in (BlockScale(), CurrentScale()))
    assert (per_block == 0).sum() == 31
    assert (per_tensor == 0).sum() == 95


def test_a_convolution_shares_powers_of_two_over_what_a_channel_sums() -> None:
    weights = torch.full((4, 32, 1, 1), 1.0)
    weights[2] *= 2.0**40
    assert torch.equal(BlockScale().rounded(weights, E4M3, ("conv", "weights")), weights)


def test_a_model_whose_inputs_differ_in_size_fits_only_with_scales_per_block() -> None:
    data = batches(1)[0]
    data[:, 32:] *= 1e-7
    model = Net()
    with torch.no_grad():
        model.up.weight[:, 32:] *= 1e7

    def of_small(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch).square().mean() + 1e-9) ** 0.5  # type: ignore[no-any-return]

    found = sg.probe(model, of_small, data, dtypes=("fp8_e4m3",))
    assert not found.trials[0].fits
    assert scaled(found, "blocks of 32").fits


# -- delayed scales


def test_a_batch_far_above_the_earlier_ones_does_not_fit_a_delayed_scale() -> None:
    data = batches()
    loud = data[0].clone()
    loud[3, :5] = 5000.0
    found = sg.probe(Net(), loss_fn, loud, dtypes=("fp8_e4m3",), earlier=data[1:])
    told = scaled(found, "delayed").because
    assert found.trials[0].fits
    assert not scaled(found, "delayed").fits
    assert "above the end of the format: " in told
    above = int((loud.abs() > torch.stack(data[1:]).abs().max()).sum())
    assert f"{above} inputs of up" in told


def test_a_delayed_scale_is_that_of_the_largest_magnitude_before() -> None:
    history = AmaxHistory()
    for size in (2.0, 7.0, 3.0):
        history.rounded(torch.tensor([0.5, -size]), E4M3, PLACE)
    assert history.largest == {PLACE: 7.0}
    delayed = DelayedScale(history)
    out = delayed.rounded(torch.tensor([7.0, 14.0, -7.5, 0.0]), E4M3, PLACE)
    assert out.tolist() == [7.0, 7.0, -7.0, 0.0]
    assert delayed.clipped == {PLACE: 2}


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_history_with_a_number_that_is_not_finite_is_named(bad: float) -> None:
    data = batches()
    data[2][5, 7] = bad
    found = sg.probe(Net(), loss_fn, data[0], dtypes=("fp8_e4m3",), earlier=data[1:])
    assert found.trials[0].fits
    assert not scaled(found, "delayed").fits
    told = scaled(found, "delayed").because
    assert "earlier batches left an amax that is not finite for the inputs of up" in told
    assert "use the current scale" in told


def test_a_history_of_zeros_is_named_and_gives_no_infinite_scale() -> None:
    data = batches()
    found = sg.probe(Net(), loss_fn, data[0], dtypes=("fp8_e4m3",), earlier=[torch.zeros(16, 64)])
    assert "nothing but zeros before in the inputs of up" in scaled(found, "delayed").because
    assert scaled(found, "delayed").gradient_cosine is not None


# -- on a terminal


def test_the_scales_are_printed_under_their_format() -> None:
    data = batches()
    text = io.StringIO()
    print_probe(Console(file=text, width=100), sg.probe(Net(), loss_fn, data[0], earlier=data[1:]))
    lines = text.getvalue().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("fp8_e4m3 "))
    assert lines[place + 1].startswith("  delayed       fits: finite; loss within ")
    assert lines[place + 2].startswith("  blocks of 32  fits: finite; loss within ")


def test_the_command_takes_the_batches_behind_the_first_for_delayed_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scaled_factory.py").write_text(
        "import torch\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Linear(32, 4)\n"
        "    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b).square().mean(), "
        "(torch.randn(8, 32) for _ in range(9))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["steady", "probe", "scaled_factory.py:make", "--dtype", "fp8_e5m2", "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["scale"] for each in found["trials"][0]["scales"]] == ["delayed", "blocks of 32"]
