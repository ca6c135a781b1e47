"""Supervision first: learn to see, to name, to outline and to follow the question; then mind the question less.

The last part is what makes GRPO possible and needed. Its rows are about any shape of the picture (`loose_truth` is the
share that is about the one asked for). What is left is a policy that says true things about the picture and has not
decided which of them was wanted: every group has good and bad completions, and the reward says which. A warm start on
right answers alone would leave nothing to learn; one that never learnt to follow a question leaves GRPO to find out
what supervision needs thousands of rows for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import steadygrad as sg
from recipes.common.progress import progress_bar
from steadygrad.numerics import dice_loss, mask_bce_loss, masked_cross_entropy

from .model import SegmentingLlava, make_model
from .scenes import answer, draw_scene, training_number
from .settings import Settings, same_or_refuse
from .words import completion_ids, join, pixels

Batch = dict[str, Tensor]


def batch_of(
    processor: Any, settings: Settings, numbers: list[int], *, truth: float, dice: np.random.Generator
) -> Batch:
    """Rows with words and masks; of each scene the thing that was asked for with probability `truth`, else any."""
    scenes = [draw_scene(number, settings.image_size, settings.pictures) for number in numbers]
    told = [scene.meant if dice.random() < truth else scene.things[int(dice.integers(2))] for scene in scenes]
    rows = join(processor, scenes, [completion_ids(processor, answer(thing)) for thing in told], settings.image_tokens)
    masks = torch.from_numpy(np.stack([thing.mask for thing in told])).float()
    return {**rows, "pixel_values": pixels(processor, [scene.image for scene in scenes]), "masks": masks}


def loss_fn(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The words, and two losses of the mask; the guard tells them apart by their names."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    logits_BTV, masks_BHW = model.words_and_masks(**inputs)  # type: ignore[operator]
    words = masked_cross_entropy(logits_BTV[:, :-1], batch["labels"][:, 1:])
    dice, bce = dice_loss(masks_BHW, batch["masks"]), mask_bce_loss(masks_BHW, batch["masks"])
    return {"loss": words + 0.5 * dice + 0.5 * bce, "words": words, "dice": 0.5 * dice, "bce": 0.5 * bce}


def batches(
    processor: Any, settings: Settings, *, truth: Callable[[int], float], size: int, start: int, first_place: int
) -> Iterator[Batch]:
    """Endless, and the same from any point on: batch n depends on the seed and on n alone."""
    while True:
        dice = np.random.default_rng((settings.seed, start))
        numbers = [training_number(settings.seed, first_place + start * size + row) for row in range(size)]
        yield batch_of(processor, settings, numbers, truth=truth(start), dice=dice)
        start += 1


def supervise(
    model: SegmentingLlava,
    processor: Any,
    settings: Settings,
    run_dir: Path,
    *,
    steps: int,
    size: int,
    rate: float,
    truth: Callable[[int], float],
    first_place: int = 500_000,
    resume: bool = False,
    name: str = "warm start",
) -> dict[str, Any]:
    """Guarded supervised steps; returns the guard's summary. Ctrl-C leaves a checkpoint to resume from."""
    if not resume:
        shutil.rmtree(run_dir, ignore_errors=True)  # or two runs would be one journal
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    warmup = max(1, min(20, steps // 10))
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup) * (1 - 0.8 * min(1.0, step / steps)))
    precision = "bf16" if device.type == "cuda" else "fp32"
    guard = sg.Guard(
        model.train(), optimizer, loss_fn, max_grad_norm=1.0, scheduler=schedule, precision=precision, run_dir=run_dir,
        checkpoint_every=200, resume=resume,
    )  # fmt: skip
    with guard, progress_bar(name, steps, show=settings.show) as tick:
        start = guard.batches_seen
        feed = batches(processor, settings, truth=truth, size=size, start=start, first_place=first_place)
        while guard.step_number < steps:
            outcome = guard.step({name: value.to(device) for name, value in next(feed).items()})
            words = f"loss {outcome.loss:.3f}" if guard.step_number % 50 == 0 else ""
            tick(guard.step_number, words)
        guard.settle()
        return guard.summary()


def warm_started(settings: Settings, processor: Any) -> tuple[SegmentingLlava, dict[str, Any]]:
    """The warm-started model: read if these very settings have left one in `out/warm`, else trained and kept there."""
    folder = settings.out / "warm"
    weights, known = folder / "model.safetensors", folder / "settings.json"
    model = make_model(settings, processor).to(settings.device)
    if weights.is_file() and known.is_file() and json.loads(known.read_text()) == settings.warm_plain():
        model.load_state_dict(load_file(weights))
        return model, json.loads((folder / "result.json").read_text())
    resume = settings.resume and (folder / "run").is_dir()
    if resume:
        same_or_refuse(known, settings.warm_plain())
    folder.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(settings.warm_plain(), indent=1) + "\n", encoding="utf-8")
    weights.unlink(missing_ok=True)
    told = supervise(
        model, processor, settings, folder / "run", steps=settings.warm_steps + settings.loose_steps,
        size=settings.warm_batch, rate=settings.warm_rate, resume=resume,
        truth=lambda step: 1.0 if step < settings.warm_steps else settings.loose_truth,
    )  # fmt: skip
    result = {key: told[key] for key in ("steps", "applied", "skipped")}
    (folder / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    keep(model, weights)
    return model, result


def keep(model: nn.Module, path: Path) -> None:
    save_file({name: value.detach().cpu().clone() for name, value in model.state_dict().items()}, path)
