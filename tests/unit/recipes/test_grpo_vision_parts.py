"""The parts of the vision task: scenes, processor, model with its mask head, rewards, measuring."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from recipes.grpo.vision.measuring import complete, measure, score, seen_by
from recipes.grpo.vision.model import SegmentingLlava, make_model
from recipes.grpo.vision.picture import draw, masks_over
from recipes.grpo.vision.rewards import WEIGHTS, format_score, iou, iou_scores, masks_of, object_score
from recipes.grpo.vision.scenes import COLOURS, KINDS, SHAPES, answer, draw_scene, measuring_number, training_number
from recipes.grpo.vision.settings import Settings, same_or_refuse
from recipes.grpo.vision.task import evaluate, rows
from recipes.grpo.vision.warm_start import batch_of, loss_fn
from recipes.grpo.vision.words import SEG, completion_ids, join, make_processor, pixels, prompt, prompt_ids
from trl.data_utils import prepare_multimodal_messages

import steadygrad as sg

SMALL = Settings(
    vision_width=16, width=32, layers=1, vision_layers=1, mask_width=4, measured_on=12, show=False, device="cpu"
)


@pytest.fixture(scope="module")
def processor() -> object:
    return make_processor(SMALL)


@pytest.fixture(scope="module")
def model(processor: object) -> SegmentingLlava:
    return make_model(SMALL, processor).eval()


# -- scenes


def test_a_scene_is_drawn_from_its_number_alone() -> None:
    first, again, other = draw_scene(7), draw_scene(7), draw_scene(8)
    assert first.image.tobytes() == again.image.tobytes() != other.image.tobytes()
    assert first.question == again.question
    assert all((a.mask == b.mask).all() for a, b in zip(first.things, again.things, strict=True))


def test_no_scene_is_both_trained_on_and_measured_with() -> None:
    trained = {training_number(seed, place) for seed in range(4) for place in range(2000)}
    assert len(trained) == 8000
    assert not trained & {measuring_number(place) for place in range(6_000_000, 6_002_000)}
    assert not trained & {measuring_number(place) for place in range(2000)}


def test_things_differ_in_colour_and_shape_and_their_masks_do_not_touch() -> None:
    for number in range(60):
        first, second = draw_scene(number).things
        assert first.colour != second.colour
        assert first.shape != second.shape
        assert not (first.mask & second.mask).any()
        assert first.mask.sum() > 20


def test_the_pixels_under_a_mask_have_the_colour_that_is_named() -> None:
    for number in range(20):
        scene = draw_scene(number)
        for thing in scene.things:
            inside = np.asarray(scene.image)[thing.mask]
            assert (inside == COLOURS[thing.colour]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_question_means_one_thing_and_no_other(kind: str) -> None:
    scenes = [scene for number in range(90) if (scene := draw_scene(number)).kind == kind]
    assert len(scenes) > 10
    for scene in scenes:
        words, other = scene.question.split(), scene.things[1 - scene.asked]
        if kind == "colour":
            assert scene.meant.colour in words
            assert other.colour not in words
        elif kind == "shape":
            assert scene.meant.shape in words
            assert other.shape not in words
        else:
            (rows_, columns), (other_rows, other_columns) = np.nonzero(scene.meant.mask), np.nonzero(other.mask)
            gaps = {
                "left": other_columns.mean() - columns.mean(), "right": columns.mean() - other_columns.mean(),
                "upper": other_rows.mean() - rows_.mean(), "lower": rows_.mean() - other_rows.mean(),
            }  # fmt: skip
            assert gaps[words[2]] > 5


# -- words


def test_our_prompt_is_token_for_token_the_one_that_trl_makes(processor: object) -> None:
    for number in range(6):
        scene = draw_scene(number)
        messages = prepare_multimodal_messages(prompt(scene.question), images=[scene.image])
        made = processor.apply_chat_template(
            conversation=[messages], add_generation_prompt=True, tokenize=True, return_dict=True
        )
        assert made["input_ids"][0] == prompt_ids(processor, scene.question, SMALL.image_tokens)


def test_every_word_that_can_be_asked_or_answered_is_known(processor: object) -> None:
    unknown = processor.tokenizer.unk_token_id
    for number in range(200):
        scene = draw_scene(number)
        for thing in scene.things:
            assert unknown not in completion_ids(processor, answer(thing))
        assert unknown not in prompt_ids(processor, scene.question, SMALL.image_tokens)


def test_an_answer_comes_back_from_its_tokens(processor: object) -> None:
    words = answer(draw_scene(3).meant)
    assert processor.tokenizer.decode(completion_ids(processor, words)[:-1]) == words


def test_only_the_completion_is_learnt_from(processor: object) -> None:
    scenes = [draw_scene(number) for number in range(8)]
    said = [completion_ids(processor, answer(scene.meant)) for scene in scenes]
    made = join(processor, scenes, said, SMALL.image_tokens)
    for row, ids in zip(made["labels"].tolist(), said, strict=True):
        assert [label for label in row if label != -100] == ids


# -- model


def test_the_same_seed_is_the_same_model_and_another_is_not(processor: object) -> None:
    state = torch.get_rng_state()
    first, again = make_model(SMALL, processor).state_dict(), make_model(SMALL, processor).state_dict()
    other = make_model(dataclasses.replace(SMALL, seed=1), processor).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert torch.equal(state, torch.get_rng_state())


def test_words_and_masks_says_the_words_that_forward_says(model: SegmentingLlava, processor: object) -> None:
    batch = batch_of(processor, SMALL, [2, 4, 6], truth=1.0, dice=np.random.default_rng(0))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    with torch.no_grad():
        words, masks = model.words_and_masks(**inputs)
        torch.testing.assert_close(words, model(**inputs).logits)
    assert masks.shape == (3, SMALL.image_size, SMALL.image_size)


def test_the_mask_depends_on_the_picture_the_name_and_the_seg_state(model: SegmentingLlava, processor: object) -> None:
    scene, other = draw_scene(2), draw_scene(4)
    names = [completion_ids(processor, answer(thing)) for thing in scene.things]

    def logits(said: list[int], image: object) -> torch.Tensor:
        made = join(processor, [scene], [said], SMALL.image_tokens)
        with torch.no_grad():
            return model.words_and_masks(
                input_ids=made["input_ids"],
                attention_mask=made["attention_mask"],
                pixel_values=pixels(processor, [image]),
            )[1]

    first = logits(names[0], scene.image)
    assert not torch.equal(first, logits(names[1], scene.image))
    assert not torch.equal(first, logits(names[0], other.image))


def test_both_losses_of_the_mask_reach_the_vision_tower_and_the_language_model(processor: object) -> None:
    model = make_model(SMALL, processor)
    terms = loss_fn(model, batch_of(processor, SMALL, [2, 4], truth=1.0, dice=np.random.default_rng(0)))
    apart = terms["words"] + terms["dice"] + terms["bce"]
    torch.testing.assert_close(apart, terms["loss"])
    (terms["dice"] + terms["bce"]).backward()
    for part in (model.mask_head, model.model.vision_tower, model.model.language_model.layers):
        assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in part.parameters())


def test_the_warm_start_tells_of_the_asked_thing_as_often_as_it_should(processor: object) -> None:
    numbers = list(range(0, 800, 2))
    scenes = [draw_scene(number) for number in numbers]
    wanted = torch.from_numpy(np.stack([scene.meant.mask for scene in scenes])).float()
    shares = {}
    for truth in (0.0, 1.0):
        told = batch_of(processor, SMALL, numbers, truth=truth, dice=np.random.default_rng(0))["masks"]
        shares[truth] = float((told == wanted).flatten(1).all(1).float().mean())
    assert shares[1.0] == 1.0
    assert 0.4 < shares[0.0] < 0.6  # any of two


# -- rewards


def test_the_three_rewards_add_up_to_one() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("it is the red circle [SEG] .", 1.0),
        ("it is the circle red [SEG] .", 0.0),
        ("it is the red circle .", 0.0),
        ("it is the red circle [SEG] . [SEG] .", 0.0),
        ("", 0.0),
    ],
)
def test_the_form_is_all_or_nothing(text: str, wanted: float) -> None:
    assert format_score(text) == wanted


def test_naming_is_worth_half_for_each_word_and_nothing_for_naming_everything() -> None:
    scene = draw_scene(2)
    meant, other = scene.meant, scene.things[1 - scene.asked]
    assert object_score(answer(meant), scene) == 1.0
    assert object_score(f"{meant.colour} {other.shape}", scene) == 0.5
    assert object_score(f"{other.colour} {meant.shape}", scene) == 0.5
    assert object_score(answer(other), scene) == 0.0
    assert object_score(" ".join((*COLOURS, *SHAPES)), scene) == 0.0


def test_iou_of_equal_disjoint_half_and_empty_masks() -> None:
    full, none = torch.ones(4, 4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
    half = full.clone()
    half[:2] = False
    found = iou(torch.stack([full, full, full, none]), torch.stack([full, none, half, none]))
    assert found.tolist() == [1.0, 0.0, 0.5, 1.0]


def test_a_completion_without_seg_has_no_mask(model: SegmentingLlava, processor: object) -> None:
    scenes = [draw_scene(2), draw_scene(4)]
    bare = processor.tokenizer("it is the red circle .", add_special_tokens=False)["input_ids"]
    assert processor.tokenizer.convert_tokens_to_ids(SEG) not in bare
    said = [list(bare), completion_ids(processor, answer(scenes[1].meant))]
    assert not masks_of(model, processor, SMALL, scenes, said)[0].any()
    assert iou_scores(model, processor, SMALL, scenes, said)[0] == 0.0


# -- measuring


def test_a_perfect_answer_scores_full_marks_but_for_the_mask(model: SegmentingLlava, processor: object) -> None:
    scenes = [draw_scene(number) for number in range(1, 21, 2)]
    found = score(model, processor, SMALL, scenes, [completion_ids(processor, answer(s.meant)) for s in scenes])
    assert found["format"] == found["object"] == found["named"] == 1.0
    assert found["reward"] == pytest.approx(0.6 + 0.4 * found["iou"])


def test_measuring_twice_gives_the_same_and_leaves_the_random_numbers_alone(
    model: SegmentingLlava, processor: object
) -> None:
    state = torch.get_rng_state()
    first = measure(model, processor, SMALL, views=("own", "shuffled", "grey"))
    assert first == measure(model, processor, SMALL, views=("own", "shuffled", "grey"))
    assert set(first) == {"sampled", "greedy", "shuffled", "grey"}
    assert torch.equal(state, torch.get_rng_state())


def test_completions_end_at_their_end_and_never_hold_an_image_token(model: SegmentingLlava, processor: object) -> None:
    scenes = [draw_scene(number) for number in range(1, 25, 2)]
    said = complete(model, processor, SMALL, scenes, greedy=False)
    end, image = processor.tokenizer.eos_token_id, model.config.image_token_id
    assert all(end not in ids[:-1] and image not in ids for ids in said)
    assert len(said) == len(scenes)


def test_shuffled_pictures_are_those_of_another_scene() -> None:
    scenes = [draw_scene(number) for number in range(1, 9, 2)]
    shuffled = seen_by(scenes, "shuffled")
    assert all(image is not scene.image for image, scene in zip(shuffled, scenes, strict=True))
    assert {id(image) for image in shuffled} == {id(scene.image) for scene in scenes}
    assert all(len(image.getcolors()) == 1 for image in seen_by(scenes, "grey"))


def test_rows_carry_the_picture_or_a_grey_one() -> None:
    scenes = [draw_scene(number) for number in (2, 4)]
    own = rows(scenes, SMALL)
    blind = rows(scenes, dataclasses.replace(SMALL, blind=True))
    assert own[0]["image"].tobytes() == scenes[0].image.tobytes()
    assert blind[0]["image"].tobytes() == blind[1]["image"].tobytes()
    assert own["scene"] == blind["scene"] == [0, 1]


# -- errors, in words


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"patch_size": 5}, "image_size 32 is not a multiple of patch_size 5"),
        ({"generations": 1}, "generations must be at least 2"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
    ],
)
def test_what_cannot_work_is_an_error_with_a_sentence(change: dict[str, int], sentence: str) -> None:
    with pytest.raises(sg.UsageError, match=sentence):
        dataclasses.replace(SMALL, **change).checked()


def test_evaluating_what_was_never_trained_says_how_to_train_it(tmp_path: Path) -> None:
    with pytest.raises(sg.UsageError, match=r"no trained model.*recipes\.grpo train"):
        evaluate(dataclasses.replace(SMALL, out=tmp_path))


def test_a_run_is_not_resumed_with_other_numbers(tmp_path: Path) -> None:
    known = tmp_path / "settings.json"
    known.write_text('{"seed": 0, "steps": 5}')
    same_or_refuse(known, {"seed": 0, "steps": 5})
    with pytest.raises(sg.UsageError, match="begun with another steps"):
        same_or_refuse(known, {"seed": 0, "steps": 6})


# -- picture


def test_the_picture_shows_curves_and_masks(model: SegmentingLlava, processor: object) -> None:
    scenes = [draw_scene(number) for number in (1, 3)]
    shown = masks_over(scenes, [scene.meant.mask for scene in scenes], [answer(scene.meant) for scene in scenes])
    made = draw({"seed 0": [0.5, 0.6, 0.8]}, {"warm start": shown, "after GRPO": shown})
    assert made.startswith("<svg ")
    assert made.count("data:image/png;base64,") == 4
    assert "polyline" in made
    assert scenes[0].question in made
