"""The probe: its ranges against a direct calculation, its verdicts on models built to fit or not, and no trace."""

from __future__ import annotations

import io
import json
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import steadygrad as sg
from steadygrad.checkup.trials.dtype_ranges import FORMATS, RangeTally, loss_scale_for
from steadygrad.checkup.trials.precision_trial import rounded
from steadygrad.commands import main
from steadygrad.records.checks.probe import ModuleRange, Probe
from steadygrad.records.errors import UsageError
from steadygrad.reporters.pictures.probe_picture import svg, write_picture
from steadygrad.reporters.terminal.print_probe import axis, picture, print_probe, tightest


class Net(nn.Module):
    """`gain` blows up what goes through the two middle layers; a norm behind them makes the loss indifferent to it."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 40)
        self.gain = gain

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(self.embed(ids) * self.gain))
        return self.head(self.norm(self.down(hidden)))  # type: ignore[no-any-return]


def loss_fn(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def made(gain: float = 1.0) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net(gain), torch.randint(0, 40, (4, 6))


def trial(found: Probe, dtype: str) -> Any:
    return next(each for each in found.trials if each.dtype == dtype)


def module(found: Probe, name: str) -> ModuleRange:
    return next(each for each in found.modules if each.name == name)


# -- ranges


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_share_that_vanishes_is_what_torch_itself_rounds_to_zero(name: str) -> None:
    torch.manual_seed(0)
    form = FORMATS[name]
    values = torch.randn(4000) * torch.exp2(torch.randint(-140, 10, (4000,)).float())
    values = values[values != 0]
    tally = RangeTally()
    tally.add(values)
    real = (values.to(form.torch_dtype).float() == 0).float().mean().item()
    assert tally.vanishing(form) == pytest.approx(real, abs=1e-6)
    scale = 2.0**20
    large = (values * scale)[(values * scale).abs() < form.largest]
    small = RangeTally()
    small.add(large / scale)
    real = (large.to(form.torch_dtype).float() == 0).float().mean().item()
    assert small.vanishing(form, scale=scale) == pytest.approx(real, abs=1e-6)


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_end_of_a_format_is_the_one_torch_knows(name: str) -> None:
    form = FORMATS[name]
    assert form.largest == torch.finfo(form.torch_dtype).max
    tally = RangeTally()
    tally.add(torch.tensor([form.largest / 8, -form.largest / 4, 0.0]))
    assert tally.headroom(form) == pytest.approx(2.0)
    assert tally.own_scale(form) == 4.0


def test_zeros_infinities_and_nan_enter_no_statistic() -> None:
    tally = RangeTally()
    tally.add(torch.tensor([0.0, math.nan, math.inf, -math.inf]))
    assert (tally.empty, tally.num_bad, tally.num_elements) == (True, 3, 4)
    assert tally.headroom(FORMATS["fp16"]) == -math.inf
    tally.add(torch.tensor([3.0, -0.5]))
    assert (tally.largest, tally.smallest) == (3.0, 0.5)
    assert RangeTally().headroom(FORMATS["fp16"]) is None


def test_the_loss_scale_leaves_one_bit_of_headroom_and_is_never_above_gradscalers() -> None:
    tally = RangeTally()
    tally.add(torch.tensor([1.0]))
    assert loss_scale_for([tally]) == 16384.0  # 2^15 would come within a bit of 65504
    small = RangeTally()
    small.add(torch.tensor([1e-6]))
    assert loss_scale_for([small]) == 65536.0


def test_every_module_shows_the_magnitudes_it_really_had() -> None:
    model, ids = made()
    found = sg.probe(model, loss_fn, ids, dtypes=["fp16"])
    assert [each.name for each in found.modules] == ["embed", "up", "down", "norm", "head"]
    hidden = model.up(model.embed(ids))
    assert module(found, "up").largest == pytest.approx(hidden.abs().max().item())
    assert module(found, "up").smallest == pytest.approx(hidden.abs().min().item())
    logits = model(ids)
    logits.retain_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    assert logits.grad is not None
    assert module(found, "head").grad_largest == pytest.approx(logits.grad.abs().max().item())
    bits = math.log2(65504 / logits.abs().max().item())
    assert module(found, "head").fits["fp16"].headroom == pytest.approx(bits, abs=1e-4)


# -- verdicts


def test_an_ordinary_model_fits_everywhere_and_the_runs_prove_it() -> None:
    found = sg.probe(*_arguments(*made()))
    assert found.fit
    assert [each.dtype for each in found.trials] == list(FORMATS)
    for each in found.trials:
        assert each.fits, each.because
        assert each.wider == ()
        assert each.loss == pytest.approx(found.loss, rel=0.05)
    assert trial(found, "fp16").gradient_cosine > 0.999
    assert trial(found, "fp8_e4m3").emulated


def _arguments(model: Net, ids: torch.Tensor) -> tuple[Net, Any, torch.Tensor]:
    return model, loss_fn, ids


def test_a_model_that_overflows_in_fp16_is_told_which_modules_to_keep_wide_and_that_it_helps() -> None:
    model, ids = made(gain=3e5)
    found = sg.probe(model, loss_fn, ids, dtypes=["fp16", "bf16"])
    half, brain = trial(found, "fp16"), trial(found, "bf16")
    assert math.isfinite(found.loss)
    assert (half.fits, half.fits_with_wider) == (False, True)
    assert set(half.wider) == {"up", "down"}
    assert brain.fits
    assert module(found, "up").fits["fp16"].headroom < 0  # type: ignore[operator]
    with torch.autocast("cpu", dtype=torch.float16):  # the truth, without the probe
        assert not math.isfinite(loss_fn(model, ids).item())


def test_an_overflow_between_modules_is_laid_on_the_one_around_it() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.inner(x)
            scores = h @ h.transpose(-1, -2)  # no module: a product of some 1e6
            return self.norm(scores[..., :8] * 1e-6)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = nn.Sequential(Square(), nn.Linear(8, 1))
    x = torch.randn(2, 8, 8) * 2000.0
    found = sg.probe(model, lambda m, b: m(b).square().mean(), x, dtypes=["fp16"])
    half = trial(found, "fp16")
    assert not half.fits
    assert half.fits_with_wider
    assert half.wider
    assert all(name == "0" or name.startswith("0.") for name in half.wider)


def test_a_step_that_is_not_finite_as_it_is_is_said_to_be_so() -> None:
    model, ids = made()
    found = sg.probe(model, lambda m, b: loss_fn(m, b) * math.inf, ids, dtypes=["bf16"])
    assert not found.fit
    assert any("already non-finite in float32" in note for note in found.notes)


def test_half_weights_are_probed_through_a_float32_copy() -> None:
    model, ids = made()
    found = sg.probe(model.bfloat16(), loss_fn, ids, dtypes=["bf16"])
    assert any("float32 copy" in note for note in found.notes)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in found.modules} == {"float32"}


def test_half_weights_with_a_half_batch_are_probed_and_come_back_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).half()
    batch = (torch.randn(4, 8).half(), torch.randn(4, 2).half())
    before = [p.detach().clone() for p in model.parameters()]
    found = sg.probe(model, lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), batch)
    assert {trial.dtype: trial.fits for trial in found.trials}["bf16"]
    assert any("float32 copy" in note for note in found.notes)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert batch[0].dtype == torch.float16


def test_a_step_that_raises_is_one_sentence() -> None:
    def broken(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return module(batch.half()).sum()  # type: ignore[no-any-return]

    with pytest.raises(UsageError, match="its float32 copy raised RuntimeError"):
        sg.probe(nn.Linear(2, 2).half(), broken, torch.ones(1, 2))


def test_a_compiled_model_is_probed_through_its_own_modules() -> None:
    model, ids = made(gain=3e5)
    compiled = torch.compile(model, backend="eager")
    loss_fn(compiled, ids)  # compiled before the probe's hooks are there
    found = sg.probe(compiled, loss_fn, ids, dtypes=["fp16"])
    assert [each.kind for each in found.modules] == ["Embedding", "Linear", "Linear", "LayerNorm", "Linear"]
    assert trial(found, "fp16").fits_with_wider


def test_rounding_to_eight_bits_is_what_the_dtype_does_under_a_scale() -> None:
    form = FORMATS["fp8_e4m3"]
    values = torch.tensor([448.0, 1.0625, 0.001, 0.0])
    assert torch.equal(rounded(values, form), values.to(torch.float8_e4m3fn).float())
    assert torch.equal(rounded(values / 1024, form), rounded(values, form) / 1024)


# -- no trace


def test_model_gradients_batch_and_random_numbers_are_the_same_bits_afterwards() -> None:
    model, ids = made(gain=3e5)
    loss_fn(model, ids).backward()  # type: ignore[no-untyped-call]
    drop = nn.Dropout(0.5)
    gradients = [p.grad for p in model.parameters()]
    before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters() if p.grad is not None]
    rng, batch = torch.get_rng_state(), ids.clone()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    sg.probe(model, lambda m, b: loss_fn(m, b) + drop(torch.ones(1)).sum() * 0.01, ids)
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.equal(batch, ids)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert not any("forward" in vars(m) for m in model.modules())
    for p, old, (weight, gradient) in zip(model.parameters(), gradients, before, strict=True):
        assert p.grad is old
        assert torch.equal(p, weight)
        assert torch.equal(p.grad, gradient)  # type: ignore[arg-type]


# -- as a person sees it


def printed(found: Probe, **options: Any) -> str:
    screen = Console(file=io.StringIO(), width=120, markup=False, highlight=False)
    print_probe(screen, found, **options)
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_report_names_modules_and_verdicts() -> None:
    model, ids = made(gain=3e5)
    text = printed(sg.probe(model, loss_fn, ids, dtypes=["fp16", "bf16"]))
    assert "fp16     does not fit: the loss is nan; with up, down in float32 it fits" in text
    assert "bf16     fits" in text
    assert "= outputs   - gradients   | the ends of fp16" in text


def test_the_picture_places_a_range_between_its_powers_of_two() -> None:
    one = ModuleRange(name="m", kind="Linear", smallest=2.0**-10, largest=2.0**4)
    low, high = axis([one])
    line = picture([one], width=high - low + 1)[1].plain[32:]
    assert (low, high) == (-26, 18)
    assert line.index("=") == -10 - low
    assert line.rindex("=") == 4 - low
    assert [place for place, mark in enumerate(line) if mark == "|"] == [-24 - low, 16 - low]


def test_only_the_tightest_modules_are_shown_unless_all_are_asked_for() -> None:
    model, ids = made(gain=3e5)
    found = sg.probe(model, loss_fn, ids, dtypes=["fp16"])
    assert [each.name for each in tightest(found.modules, 2)] == ["up", "down"]
    assert "3 modules with more headroom are left out" in printed(found, most=2)


def test_the_svg_is_well_formed_and_hostile_names_are_only_text() -> None:
    name = 'a"><script>alert(1)</script>\x1b[2J'
    found = Probe(loss=1.0, modules=(ModuleRange(name=name, kind="X", smallest=0.1, largest=1e9),))
    text = svg(found)
    root = ET.fromstring(text)
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    assert "\x1b" not in text
    assert any("beyond fp16" in (node.text or "") for node in root.iter())


def test_pictures_are_written_as_their_name_says(tmp_path: Path) -> None:
    model, ids = made()
    found = sg.probe(model, loss_fn, ids, dtypes=["fp16"])
    write_picture(found, tmp_path / "ranges.svg")
    assert (tmp_path / "ranges.svg").read_text().startswith("<svg")
    Image = pytest.importorskip("PIL.Image")
    write_picture(found, tmp_path / "ranges.png")
    with Image.open(tmp_path / "ranges.png") as drawn:
        assert drawn.format == "PNG"
        assert len(drawn.getcolors(100_000)) > 3  # something is drawn on it
    with pytest.raises(UsageError, match=r"ends in \.svg or \.png"):
        write_picture(found, tmp_path / "ranges.bmp")
    with pytest.raises(UsageError, match="cannot be written"):
        write_picture(found, tmp_path / "gone" / "ranges.svg")


def test_the_command_probes_the_first_batch_and_exits_with_1_where_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "probed.py").write_text(
        "import torch\n"
        "def make(gain=1.0):\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))\n"
        "    batches = iter([torch.randn(6, 4) * gain])\n"
        "    return {'model': model, 'loss_fn': lambda m, b: m(b).square().mean(), 'batches': batches}\n"
        "def large():\n    return make(1e6)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["steady", "probe", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().out

    code, out = call(f"{tmp_path}/probed.py:make", "--dtype", "fp16", "-o", str(tmp_path / "p.svg"))
    assert code == 0
    assert "fp16     fits" in out
    assert (tmp_path / "p.svg").is_file()
    code, out = call(f"{tmp_path}/probed.py:large", "--json", "--dtype", "fp16", "--dtype", "bf16")
    assert code == 1
    assert [each["fits"] for each in json.loads(out)["trials"]] == [False, True]
    sys.modules.pop("probed", None)


def test_wrong_arguments_are_refused_in_words() -> None:
    model, ids = made()
    with pytest.raises(UsageError, match="does not know fp4; it knows fp16, bf16, fp8_e4m3, fp8_e5m2"):
        sg.probe(model, loss_fn, ids, dtypes=["fp4"])
    with pytest.raises(UsageError, match=r"needs a torch\.nn\.Module"):
        sg.probe(loss_fn, model, ids)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="loss_fn returned list"):
        sg.probe(model, lambda m, b: [1], ids)
