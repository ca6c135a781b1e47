"""Scenes on photographs and scenes of handwritten digits: what they show, what is kept apart, what they need."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from PIL import Image
from recipes.grpo.__main__ import PICTURES, main, parser
from recipes.grpo.vision import sources, task
from recipes.grpo.vision.picture import masks_over
from recipes.grpo.vision.report import report
from recipes.grpo.vision.rewards import format_score, object_score
from recipes.grpo.vision.scenes import COLOURS, DIGITS, SHAPES, answer, draw_scene, shapes_of
from recipes.grpo.vision.settings import Settings
from recipes.grpo.vision.words import completion_ids, make_processor, prompt_ids, words_for

import steadygrad as sg

SMALL = Settings(
    vision_width=16, width=32, layers=1, vision_layers=1, mask_width=4, measured_on=8, show=False, device="cpu",
    warm_steps=2, loose_steps=1, warm_batch=4, steps=2, prompts=2, generations=2,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stripes(name: str) -> Image.Image:
    """A wide picture with a period of its own for every name."""
    period = 3 + (*sources.TRAINED_ON, *sources.MEASURED_WITH).index(name)
    column = 200 * (np.arange(160) // period % 2)
    return Image.fromarray(np.broadcast_to(column[None, :, None], (100, 160, 3)).astype(np.uint8))


def strokes(measuring: bool) -> dict[int, Any]:
    """Two drawings of each digit: as many upright strokes as the digit says, thicker for measuring."""
    drawings = {}
    for digit in range(10):
        drawing = np.zeros((2, 8, 8), dtype=np.float32)
        drawing[:, 1:7, 1 : 2 + digit // 2] = 1.0
        drawing[:, 6 - digit % 2 - int(measuring), 1:7] = 1.0
        drawing[1, 0, 1] = 1.0
        drawings[digit] = drawing
    return drawings


@pytest.fixture
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures made here, where the packages that carry the real ones need not be installed."""
    monkeypatch.setattr(sources, "photograph", stripes)
    monkeypatch.setattr(sources, "digits_of", strokes)
    monkeypatch.setattr(sources, "NEEDS", dict.fromkeys(sources.NEEDS))


@pytest.fixture
def _real() -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")


# -- what changes nothing: the default


def test_shapes_on_noise_are_the_default_and_the_words_for_them_hold_no_digit() -> None:
    assert Settings().pictures == "shapes"
    assert draw_scene(12).image.tobytes() == draw_scene(12, 32, "shapes").image.tobytes()
    assert not {*DIGITS, "digit"} - {"one"} & set(words_for("shapes"))
    assert words_for("photographs") == words_for("shapes")


def test_the_words_for_shapes_stand_where_they_stood_when_there_were_no_other_pictures() -> None:
    asked = ("user", "assistant", "segment", "the", "one", "it", "is", ".")
    colours = ("red", "green", "blue", "yellow", "white", "pink")
    shapes, places = ("circle", "square", "triangle", "cross"), ("left", "right", "upper", "lower")
    assert words_for("shapes") == (*asked, *colours, *shapes, *places)


# -- scenes


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize("pictures", ["photographs", "digits"])
def test_a_scene_of_any_pictures_is_drawn_from_its_number_alone(pictures: str) -> None:
    first, again, other = (draw_scene(number, 32, pictures) for number in (7, 7, 8))
    assert first.image.tobytes() == again.image.tobytes() != other.image.tobytes()
    assert (first.question, first.kind) == (again.question, again.kind)


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize("pictures", ["photographs", "digits"])
def test_two_things_differ_in_colour_and_name_and_do_not_overlap(pictures: str) -> None:
    for number in range(80):
        first, second = draw_scene(number, 32, pictures).things
        assert first.colour != second.colour
        assert first.shape != second.shape
        assert {first.shape, second.shape} <= set(shapes_of(pictures))
        assert not (first.mask & second.mask).any()
        assert min(first.mask.sum(), second.mask.sum()) >= 10


@pytest.mark.usefixtures("_stand_ins")
def test_a_photograph_is_seen_at_half_its_brightness_around_shapes_of_full_colour() -> None:
    for number in range(20):
        scene = draw_scene(number, 32, "photographs")
        pixels = np.asarray(scene.image)
        around = ~(scene.things[0].mask | scene.things[1].mask)
        assert pixels[around].max() <= 100
        assert np.ptp(pixels[around]) > 20  # stripes, and not one grey
        for thing in scene.things:
            assert (pixels[thing.mask] == COLOURS[thing.colour]).all()


@pytest.mark.usefixtures("_stand_ins")
def test_under_the_mask_of_a_digit_there_is_more_ink_than_ground() -> None:
    for number in range(20):
        scene = draw_scene(number, 32, "digits")
        for thing in scene.things:
            inside = np.asarray(scene.image)[thing.mask].astype(float)
            assert (inside >= 0.5 * np.array(COLOURS[thing.colour]) - 2).all()  # two for rounding, twice


@pytest.mark.usefixtures("_stand_ins")
def test_measuring_asks_for_other_photographs_and_other_drawings_than_training(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    parts: list[bool] = []

    def noted(name: str) -> Image.Image:
        asked.append(name)
        return stripes(name)

    def parted(measuring: bool) -> dict[int, Any]:
        parts.append(measuring)
        return strokes(measuring)

    monkeypatch.setattr(sources, "photograph", noted)
    monkeypatch.setattr(sources, "digits_of", parted)
    for first, names in ((0, sources.TRAINED_ON), (1, sources.MEASURED_WITH)):
        asked.clear()
        parts.clear()
        for number in range(first, 160, 2):
            draw_scene(number, 32, "photographs")
            draw_scene(number, 32, "digits")
        assert set(asked) == set(names)
        assert set(parts) == {first == 1}
    assert not set(sources.TRAINED_ON) & set(sources.MEASURED_WITH)


@pytest.mark.usefixtures("_real")
def test_no_handwritten_digit_is_both_trained_on_and_measured_with() -> None:
    trained, measured = (
        {(digit, each.tobytes()) for digit, drawings in sources.digits_of(part).items() for each in drawings}
        for part in (False, True)
    )
    assert len(trained) + len(measured) == 1797
    assert not trained & measured
    assert {digit for digit, _ in trained} == {digit for digit, _ in measured} == set(range(10))


@pytest.mark.usefixtures("_real")
def test_every_photograph_comes_with_the_package_and_in_colour() -> None:
    for name in (*sources.TRAINED_ON, *sources.MEASURED_WITH):
        found = sources.photograph(name)
        assert found.mode == "RGB"
        assert min(found.size) >= 300
        assert np.asarray(found).std() > 10


@pytest.mark.usefixtures("_real")
def test_real_scenes_show_what_they_name() -> None:
    for number in range(40):
        scene = draw_scene(number, 32, "photographs")
        for thing in scene.things:
            assert (np.asarray(scene.image)[thing.mask] == COLOURS[thing.colour]).all()
        assert all(15 <= thing.mask.sum() <= 150 for thing in draw_scene(number, 32, "digits").things)


# -- words and rewards


@pytest.mark.usefixtures("_stand_ins")
def test_every_word_about_digits_is_known_and_the_shapes_are_not_among_them() -> None:
    processor = make_processor(dataclasses.replace(SMALL, pictures="digits"))
    unknown = processor.tokenizer.unk_token_id
    for number in range(200):
        scene = draw_scene(number, 32, "digits")
        assert unknown not in prompt_ids(processor, scene.question, SMALL.image_tokens)
        assert all(unknown not in completion_ids(processor, answer(thing)) for thing in scene.things)
    assert not set(SHAPES) & set(words_for("digits"))
    assert len(words_for("digits")) == len(set(words_for("digits")))


@pytest.mark.usefixtures("_stand_ins")
def test_the_question_for_a_one_is_not_the_question_for_anything() -> None:
    asked = {scene.question for number in range(600) if (scene := draw_scene(number, 32, "digits"))}
    assert "segment the one" in asked
    assert {words.split()[-1] for words in asked} == {*DIGITS, "digit"}


@pytest.mark.usefixtures("_stand_ins")
def test_a_digit_is_scored_like_a_shape() -> None:
    scene = draw_scene(2, 32, "digits")
    meant, other = scene.meant, scene.things[1 - scene.asked]
    assert format_score(answer(meant), DIGITS) == 1.0
    assert format_score(answer(meant)) == 0.0
    assert format_score("it is the red one [SEG] .") == 0.0
    assert object_score(answer(meant), scene) == 1.0
    assert object_score(f"{meant.colour} {other.shape}", scene) == 0.5
    assert object_score(answer(other), scene) == 0.0
    assert object_score(" ".join((*COLOURS, *DIGITS)), scene) == 0.0


# -- runs


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize("pictures", ["photographs", "digits"])
def test_a_run_goes_from_the_warm_start_to_its_section_of_the_report(pictures: str, tmp_path: Path) -> None:
    settings = dataclasses.replace(SMALL, pictures=pictures, out=tmp_path)
    result = task.train(settings)
    assert result["grpo"]["applied"] == 2
    assert result["settings"]["pictures"] == pictures
    assert task.evaluate(settings) == result["after"]
    made = report([tmp_path], where="a desk", date="2026-11-15")
    assert made.startswith("## ")
    assert f"--task vision --pictures {pictures} --seed N" in made
    assert ("by digit" in made) == (pictures == "digits")
    if pictures == "digits":
        with pytest.raises(sg.UsageError, match="other sizes or pictures"):
            task.evaluate(dataclasses.replace(settings, pictures="shapes"))


def test_runs_of_several_pictures_are_not_averaged(tmp_path: Path) -> None:
    for name in ("shapes", "digits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"settings": {"pictures": name}}))
    with pytest.raises(sg.UsageError, match=r"several pictures .digits, shapes.; report them apart"):
        report([tmp_path / "shapes", tmp_path / "digits"], where="a desk", date="2026-11-15")


# -- errors, in words


@pytest.mark.parametrize(
    ("pictures", "module", "package"),
    [("photographs", "skimage", "scikit-image"), ("digits", "sklearn", "scikit-learn")],
)
def test_a_package_that_is_not_there_is_named_before_anything_is_made(
    pictures: str, module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    out = tmp_path / "run"
    assert main(["train", "--task", "vision", "--quick", "--pictures", pictures, "--out", str(out)]) == 2
    assert f"The pictures {pictures} need {package}: pip install -e '.[scenes]'." in capsys.readouterr().err
    assert not out.exists()


def test_unknown_pictures_and_tasks_without_pictures_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(sg.UsageError, match="one of shapes, photographs, digits, not paintings"):
        dataclasses.replace(SMALL, pictures="paintings").checked()
    assert main(["train", "--task", "toy", "--pictures", "digits", "--out", str(tmp_path)]) == 2
    assert "--pictures is not for this task" in capsys.readouterr().err


def test_the_command_line_offers_what_the_settings_take() -> None:
    assert set(PICTURES) == set(sources.NEEDS)
    assert parser().parse_args(["train", "--pictures", "digits"]).pictures == "digits"


def test_only_digits_have_a_longer_warm_start_and_not_when_it_is_to_be_quick() -> None:
    assert Settings.of("shapes") == Settings()
    assert Settings.of("photographs") == dataclasses.replace(Settings(), pictures="photographs")
    assert Settings.of("digits").warm_steps > Settings().warm_steps
    assert Settings.of("digits", quick=True) == dataclasses.replace(Settings.quick(), pictures="digits")


# -- picture


@pytest.mark.usefixtures("_stand_ins")
def test_an_outline_of_a_third_of_a_pixel_leaves_thin_strokes_their_colour() -> None:
    scenes = [draw_scene(number, 32, "digits") for number in (1, 3)]
    masks, said = [scene.meant.mask for scene in scenes], [answer(scene.meant) for scene in scenes]
    for shown, scene in zip(masks_over(scenes, masks, said, outside=0.0, finer=3), scenes, strict=True):
        drawn = np.asarray(Image.open(io.BytesIO(shown.png)))
        inside = np.kron(scene.meant.mask, np.ones((3, 3), dtype=bool))
        assert drawn.shape == (96, 96, 3)
        assert not drawn[~inside].any()
        middles = drawn[1::3, 1::3][scene.meant.mask]
        assert (middles == np.asarray(scene.image)[scene.meant.mask]).all()
