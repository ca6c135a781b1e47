"""`steady plot`: the picture holds the curve, the clip line and the incidents, and opens as what it says it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from trained_run import BAD_STEPS, NUM_STEPS, Call, copied, forbid, make_call, newer, one_sentence, torn, train

from steadygrad.journal import Journal
from steadygrad.records import StepRecord
from steadygrad.reporters.pictures.plot_shapes import AxisScale, scale_for, short

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("plot") / "tiny")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return make_call(capsys, monkeypatch)


def texts(path: Path) -> list[str]:
    return [node.text or "" for node in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def journal_of(where: Path, losses: list[float]) -> Path:
    with Journal(where) as journal:
        for step, loss in enumerate(losses):
            journal.step(StepRecord(run="", step=step, loss=loss, grad_norm=abs(loss) + 0.1))
            if step % 2000 == 1999:  # no training is this fast: let the writer keep up
                assert journal.flush(60)
        assert journal.flush(60)
    return where


def test_the_picture_names_the_run_the_axes_the_clip_line_and_the_incidents(
    call: Call, run: Path, tmp_path: Path
) -> None:
    code, out, _ = call("plot", str(run), "-o", str(tmp_path / "loss.svg"))
    assert code == 0
    assert "2 of 60 updates refused" in out
    words = texts(tmp_path / "loss.svg")
    for expected in ("tiny", "loss, log scale", "gradient norm, log scale", "clipped to 1", "step"):
        assert expected in words
    assert "2 incidents, refused steps marked in red" in words
    assert {"1", "2"} <= set(words)


def test_every_refused_step_is_marked_where_it_happened(call: Call, run: Path, tmp_path: Path) -> None:
    call("plot", str(run), "-o", str(tmp_path / "loss.svg"))
    tree = ElementTree.parse(tmp_path / "loss.svg").getroot()
    strokes = [
        float(node.get("points", "").partition(",")[0])
        for node in tree.iter(f"{SVG}polyline")
        if node.get("stroke") == "#c8322b"
    ]
    # Steps 0 to 59 lie between the pixels 84 and 1176; all three panels have the marks.
    wanted = [84 + (1176 - 84) * step / (NUM_STEPS - 1) for step in BAD_STEPS]
    assert sorted(strokes) == pytest.approx(sorted(3 * wanted), abs=0.2)


def test_the_curve_has_gaps_where_the_loss_was_nan_and_stays_inside_its_panel(
    call: Call, run: Path, tmp_path: Path
) -> None:
    call("plot", str(run), "-o", str(tmp_path / "loss.svg"))
    tree = ElementTree.parse(tmp_path / "loss.svg").getroot()
    curves = [node.get("points", "") for node in tree.iter(f"{SVG}polyline") if node.get("stroke") == "#7aa7e0"]
    assert len(curves) == 2 * (len(BAD_STEPS) + 1)
    places = [tuple(float(x) for x in point.split(",")) for curve in curves for point in curve.split()]
    assert all(84 <= x <= 1176 and 98 <= y <= 712 for x, y in places)
    assert len(places) == 2 * (NUM_STEPS - len(BAD_STEPS))


def test_a_png_is_a_png_of_the_same_shape(call: Call, run: Path, tmp_path: Path) -> None:
    from PIL import Image

    assert call("plot", str(run), "-o", str(tmp_path / "loss.png"))[0] == 0
    with Image.open(tmp_path / "loss.png") as picture:
        assert picture.format == "PNG"
        assert picture.size == (2400, 1520)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or []}
    assert (255, 255, 255) in colours
    assert len(colours) > 50


def test_without_pillow_a_png_says_what_to_install(
    call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    one_sentence(call("plot", str(run), "-o", str(tmp_path / "loss.png")), "needs Pillow", "steadygrad[pictures]")
    assert call("plot", str(run), "-o", str(tmp_path / "loss.svg"))[0] == 0


def test_names_from_a_stranger_stay_text(call: Call, run: Path, tmp_path: Path) -> None:
    hostile = copied(run, tmp_path / "<script>alert(1)<")
    call("plot", str(hostile), "-o", str(tmp_path / "loss.svg"))
    tree = ElementTree.parse(tmp_path / "loss.svg").getroot()
    assert {node.tag.removeprefix(SVG) for node in tree.iter()} == {"svg", "polygon", "polyline", "text"}
    assert "<script>alert(1)<" in texts(tmp_path / "loss.svg")


def test_a_loss_below_zero_gets_a_linear_axis_and_says_so(call: Call, tmp_path: Path) -> None:
    run = journal_of(tmp_path / "run", [1.0, 0.5, -0.5, -1.0])
    out = call("plot", str(run), "-o", str(tmp_path / "loss.svg"))[1]
    assert "the loss is not always above zero, so its axis is linear" in out
    assert {"loss", "gradient norm, log scale"} <= set(texts(tmp_path / "loss.svg"))
    call("plot", str(run), "--linear", "-o", str(tmp_path / "loss.svg"))
    assert {"loss", "gradient norm"} <= set(texts(tmp_path / "loss.svg"))


@pytest.mark.parametrize(
    "losses",
    [
        [1.0], [0.0, 0.0], [float("nan")] * 3, [1e-300, 1e300], [float("inf"), 2.0, float("nan")], [2.0] * 5,
        [0.0, 1.0, 2.0],
    ],
    ids=str,
)  # fmt: skip
def test_odd_curves_are_drawn_too(call: Call, tmp_path: Path, losses: list[float]) -> None:
    run = journal_of(tmp_path / "run", losses)
    assert call("plot", str(run), "-o", str(tmp_path / "loss.svg"))[0] == 0
    assert "nan" not in (tmp_path / "loss.svg").read_text().replace("no finite", "")


def test_a_long_run_is_drawn_with_few_points_and_keeps_its_extremes(call: Call, tmp_path: Path) -> None:
    losses = [1.0 + 0.001 * (step % 7) for step in range(6_000)]
    losses[2_345] = 900.0
    run = journal_of(tmp_path / "run", losses)
    call("plot", str(run), "-o", str(tmp_path / "loss.svg"))
    assert (tmp_path / "loss.svg").stat().st_size < 200_000
    assert {"100", "1"} <= set(texts(tmp_path / "loss.svg"))  # ticks up to the peak
    assert "light: lowest to highest of each stretch of steps; dark: moving mean" in texts(tmp_path / "loss.svg")


def test_json_tells_what_was_drawn(call: Call, run: Path, tmp_path: Path) -> None:
    told = json.loads(call("plot", str(run), "-o", str(tmp_path / "loss.svg"), "--json")[1])
    assert (told["steps"], told["refused"], told["incidents"], told["notes"]) == (60, 2, 2, [])


def test_bad_input_is_one_sentence(call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = str(tmp_path / "loss.svg")
    one_sentence(call("plot", str(tmp_path / "none"), "-o", output), "does not exist")
    one_sentence(call("plot", str(tmp_path), "-o", output), "not a run directory")
    Journal(tmp_path / "empty").close()
    one_sentence(call("plot", str(tmp_path / "empty"), "-o", output), "holds no steps yet")
    one_sentence(call("plot", str(newer(copied(run, tmp_path / "newer"))), "-o", output), "upgrade steadygrad")
    one_sentence(call("plot", str(run), "-o", str(tmp_path / "loss.gif")), ".png or .svg")
    one_sentence(call("plot", str(run), "-o", str(tmp_path / "no" / "loss.svg")), "cannot be written")
    forbid(monkeypatch, run / "run.json")
    one_sentence(call("plot", str(run), "-o", output), "permission denied")
    assert not Path(output).exists()


def test_a_torn_journal_is_drawn_as_far_as_it_goes_and_says_so(call: Call, run: Path, tmp_path: Path) -> None:
    cut = torn(copied(run, tmp_path / "torn"))
    code, out, _ = call("plot", str(cut), "-o", str(tmp_path / "loss.svg"))
    assert code == 0
    assert "torn record" in out
    assert "updates refused" in out


# -- numbers beside an axis


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (1.0, 1000.0, True, [1, 10, 100, 1000]),
        (1.5, 9.0, True, [2, 5]),
        (0.0, 330.0, False, [0, 50, 100, 150, 200, 250, 300]),
        (-1.0, 1.0, False, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, log: bool, expected: list[float]) -> None:
    found = AxisScale(low, high, 0, 100, log=log).ticks()
    assert found == pytest.approx(expected) or set(expected) <= {round(tick, 6) for tick in found}
    assert len(found) <= 11


def test_a_flat_curve_does_not_fill_its_panel_with_noise() -> None:
    scale = scale_for([2.0, 2.001], 0.0, 100.0, log=True)
    assert abs(scale.at(2.0) - scale.at(2.001)) < 1
    assert [short(value) for value in (0.02, 1.5, 20.0, 1000.0, 2e-6, 3e7)] == [
        "0.02",
        "1.5",
        "20",
        "1,000",
        "2e-6",
        "3e7",
    ]
