"""What a completion is worth: a fifth for its form, two fifths for the name, two fifths for the mask.

The three add up to 1 for a perfect answer, so a rise of 0.2 is a fifth of all there is.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .model import SegmentingLlava
from .scenes import COLOURS, DIGITS, SHAPES, Scene
from .settings import Settings
from .words import SEG, join, pixels

WEIGHTS = {"format": 0.2, "object": 0.4, "iou": 0.4}
FORMS = {
    shapes: re.compile(rf"it is the ({'|'.join(COLOURS)}) ({'|'.join(shapes)}) \[SEG\] \.")
    for shapes in (SHAPES, DIGITS)
}


def format_score(text: str, shapes: tuple[str, ...] = SHAPES) -> float:
    return float(FORMS[shapes].fullmatch(text.strip()) is not None)


def object_score(text: str, scene: Scene) -> float:
    """Half for the colour, half for the shape or digit of what was asked for; nothing if several are named."""
    said, known = text.split(), DIGITS if scene.meant.shape in DIGITS else SHAPES
    colours, shapes = [w for w in said if w in COLOURS], [w for w in said if w in known]
    return 0.5 * (colours == [scene.meant.colour]) + 0.5 * (shapes == [scene.meant.shape])


def iou(found: Tensor, wanted: Tensor) -> Tensor:
    """Intersection over union of bool masks along the last two dimensions; two empty masks agree."""
    both = (found & wanted).sum((-2, -1)).float()
    either = (found | wanted).sum((-2, -1)).float()
    return torch.where(either > 0, both / either.clamp(min=1), 1.0)


@torch.no_grad()
def masks_of(
    model: SegmentingLlava, processor: Any, settings: Settings, scenes: list[Scene], completions: list[list[int]],
    images: list[Any] | None = None,
) -> Tensor:  # fmt: skip
    """Bool masks, B x H x W, on the CPU; all false for a completion without [SEG]."""
    device = next(model.parameters()).device
    rows = join(processor, scenes, completions, settings.image_tokens)
    looked_at = pixels(processor, [scene.image for scene in scenes] if images is None else images)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        _, logits = model.words_and_masks(
            input_ids=rows["input_ids"].to(device), attention_mask=rows["attention_mask"].to(device),
            pixel_values=looked_at.to(device),
        )  # fmt: skip
    seg = processor.tokenizer.convert_tokens_to_ids(SEG)
    said = torch.tensor([seg in ids for ids in completions])
    return (logits.float().cpu() > 0) & said[:, None, None]


def iou_scores(
    model: SegmentingLlava, processor: Any, settings: Settings, scenes: list[Scene], completions: list[list[int]],
    images: list[Any] | None = None,
) -> list[float]:  # fmt: skip
    found = masks_of(model, processor, settings, scenes, completions, images)
    wanted = torch.from_numpy(np.stack([scene.meant.mask for scene in scenes]))
    return [float(value) for value in iou(found, wanted)]
