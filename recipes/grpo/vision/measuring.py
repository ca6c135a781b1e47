"""The reward of a model on scenes it was never trained on, sampled as in training and greedily, with three controls."""

from __future__ import annotations

from typing import Any

import torch

from .model import SegmentingLlava
from .rewards import WEIGHTS, format_score, iou_scores, object_score
from .scenes import KINDS, Scene, draw_scene, grey, measuring_number, shapes_of
from .settings import Settings
from .words import join, pixels

LONGEST = 10
VIEWS = ("own", "shuffled", "grey")


def held_out(settings: Settings) -> list[Scene]:
    numbers = map(measuring_number, range(settings.measured_on))
    return [draw_scene(number, settings.image_size, settings.pictures) for number in numbers]


def seen_by(scenes: list[Scene], view: str) -> list[Any]:
    """The pictures the model gets: their own, those of the scene before, or grey ones."""
    images = [scene.image for scene in scenes]
    if view == "shuffled":
        return [*images[-1:], *images[:-1]]
    return [grey(image) for image in images] if view == "grey" else images


@torch.no_grad()
def complete(
    model: SegmentingLlava, processor: Any, settings: Settings, scenes: list[Scene], *, greedy: bool,
    images: list[Any] | None = None,
) -> list[list[int]]:  # fmt: skip
    """The tokens said about each scene, up to and with the end."""
    device, end = next(model.parameters()).device, processor.tokenizer.eos_token_id
    rows = join(processor, scenes, [[] for _ in scenes], settings.image_tokens)
    ids, seen = rows["input_ids"][:, :-1].to(device), rows["attention_mask"][:, :-1].to(device)
    looked_at = pixels(processor, [scene.image for scene in scenes] if images is None else images).to(device)
    chosen = {"do_sample": False} if greedy else {"do_sample": True, "temperature": settings.temperature, "top_k": 0}
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        said = model.generate(
            input_ids=ids, attention_mask=seen, pixel_values=looked_at, max_new_tokens=LONGEST,
            suppress_tokens=[model.config.image_token_id], pad_token_id=processor.tokenizer.pad_token_id,
            eos_token_id=end, **chosen,
        )  # fmt: skip
    cut = []
    for row in said[:, ids.shape[1] :].tolist():
        cut.append(row[: row.index(end) + 1] if end in row else row)
    return cut


def score(
    model: SegmentingLlava, processor: Any, settings: Settings, scenes: list[Scene], completions: list[list[int]],
    images: list[Any] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Means over the scenes: `reward`, its three parts, and how often the right thing was named, also by kind."""
    texts = [processor.tokenizer.decode(ids).replace("</s>", "").strip() for ids in completions]
    objects = [object_score(text, scene) for text, scene in zip(texts, scenes, strict=True)]
    parts = {
        "format": _mean([format_score(text, shapes_of(settings.pictures)) for text in texts]),
        "object": _mean(objects),
        "iou": _mean(iou_scores(model, processor, settings, scenes, completions, images)),
    }
    named = {
        f"named_{kind}": _mean([float(o == 1) for o, scene in zip(objects, scenes, strict=True) if scene.kind == kind])
        for kind in KINDS
    }
    reward = sum(WEIGHTS[name] * value for name, value in parts.items())
    return {"reward": reward, **parts, "named": _mean([float(each == 1) for each in objects]), **named}


def measure(
    model: SegmentingLlava, processor: Any, settings: Settings, *, views: tuple[str, ...] = ("own",)
) -> dict[str, dict[str, float]]:
    """`sampled` and `greedy` with the scenes' own pictures, and sampled with each other view asked for."""
    model.eval()
    scenes, found = held_out(settings), {}
    with torch.random.fork_rng():
        for view in views:
            images = seen_by(scenes, view)
            for greedy in (False, True) if view == "own" else (False,):
                torch.manual_seed(1)
                said = complete(model, processor, settings, scenes, greedy=greedy, images=images)
                key = ("greedy" if greedy else "sampled") if view == "own" else view
                found[key] = score(model, processor, settings, scenes, said, images)
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
