"""Warm start, then GRPO: `train` and `evaluate` of `python -m recipes.grpo --task vision`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from recipes.common.progress import progress_bar
from recipes.common.speaking import put_aside
from recipes.grpo.trainer import StableGRPOTrainer, Stopped, stable_config
from steadygrad import UsageError

from .measuring import LONGEST, VIEWS, measure
from .model import SegmentingLlava, make_model
from .rewards import WEIGHTS, format_score, iou_scores, object_score
from .scenes import Scene, draw_scene, grey, shapes_of, training_number
from .settings import Settings, same_or_refuse
from .warm_start import keep, warm_started
from .words import make_processor, prompt


def train(settings: Settings) -> dict[str, Any]:
    """Warm start, measure, GRPO, measure again; the result is returned and kept as `out/result.json`."""
    settings = settings.checked()
    processor = make_processor(settings)
    say = print if settings.show else _silent
    try:
        model, warm = warm_started(settings, processor)
    except KeyboardInterrupt:
        raise Stopped("Stopped in the warm start; --resume goes on from its last checkpoint.") from None
    before = measure(model, processor, settings)
    say(f"{sum(p.numel() for p in model.parameters())} weights on {settings.device}; warm start: {in_words(before)}")
    told = reinforce(model, processor, settings)
    after = measure(model, processor, settings, views=VIEWS)
    say(f"after {settings.steps} steps of GRPO: {in_words(after)}")
    for view in VIEWS[1:]:
        say(f"  with {view} pictures: reward {after[view]['reward']:.3f}, mask IoU {after[view]['iou']:.3f}")
    say(f"{told['applied']} updates, {told['refused']} refused, {told['seconds']:.0f} s")
    keep(model, settings.out / "model.safetensors")
    result = {"settings": settings.plain(), "warm": warm, "before": before, "after": after, "grpo": told}
    (settings.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return {**result, "interrupted": False}


def evaluate(settings: Settings) -> dict[str, Any]:
    """The trained model on held-out scenes: sampled, greedy, and with pictures that are not theirs."""
    settings = settings.checked()
    processor = make_processor(settings)
    model = load_trained(settings, processor)
    found = measure(model, processor, settings, views=VIEWS)
    if settings.show:
        print(f"{settings.measured_on} held-out scenes: {in_words(found)}")
        for view in VIEWS[1:]:
            print(f"  with {view} pictures: reward {found[view]['reward']:.3f}, mask IoU {found[view]['iou']:.3f}")
    return found


def reinforce(model: SegmentingLlava, processor: Any, settings: Settings) -> dict[str, Any]:
    """GRPO on the words alone; the mask head is scored and never trained, and the vision tower stays as it is."""
    folder = settings.out / "grpo"
    checkpoint = _prepared(folder, settings)
    for part in (model.mask_head, *(() if settings.train_vision else (model.model.vision_tower,))):
        part.requires_grad_(False)
    scenes = [
        draw_scene(training_number(settings.seed, place), settings.image_size, settings.pictures)
        for place in range(settings.steps * settings.prompts)
    ]
    on_gpu = settings.device.startswith("cuda")
    arguments = stable_config(
        folder / "checkpoints",
        seed=settings.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.prompts * settings.generations,
        num_generations=settings.generations,
        max_completion_length=LONGEST,
        temperature=settings.temperature,
        learning_rate=settings.rate,
        max_grad_norm=settings.max_grad_norm,
        warmup_steps=settings.warmup_steps,
        reward_weights=list(WEIGHTS.values()),
        save_strategy="steps",
        save_steps=50,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        shuffle_dataset=False,
        disable_tqdm=True,
    )
    trainer = StableGRPOTrainer(
        model, rewards_for(model, processor, settings, scenes), arguments, train_dataset=rows(scenes, settings),
        processing_class=processor, run_dir=folder / "run", monitors=settings.show,
        say=print if settings.show else _silent, clip_value=settings.clip_value,
    )  # fmt: skip
    trainer.pop_callback(PrinterCallback)  # thirty numbers a step; the curve keeps those that matter
    trainer.add_callback(SampledByStep(settings.seed))
    began = time.monotonic()
    with trainer, progress_bar("GRPO", settings.steps, show=settings.show) as tick:
        trainer.add_callback(Ticking(tick))
        trainer.train(resume_from_checkpoint=checkpoint)
        counts = trainer.guard.summary()
        return {
            "applied": counts["applied"],
            "refused": counts["skipped"],
            "bad_weights": trainer.bad_weights(),
            "seconds": round(time.monotonic() - began, 1),
            "curve": _curve(trainer.state.log_history),
            "logits": trainer.logit_statistics.plain(),
        }


class SampledByStep(TrainerCallback):  # type: ignore[misc]
    """What a step samples depends on the seed and the step alone: a resumed run goes on as it would have."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(1_000_003 * self.seed + state.global_step)


class Ticking(TrainerCallback):  # type: ignore[misc]
    """Moves the progress bar; every ten steps it tells their mean reward."""

    def __init__(self, tick: Callable[[int, str], None]) -> None:
        self.tick = tick

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rewards = [row["reward"] for row in state.log_history[-10:] if "reward" in row]
        told = rewards and state.global_step % 10 == 0
        self.tick(state.global_step, f"reward {sum(rewards) / len(rewards):.3f}" if told else "")


def rows(scenes: list[Scene], settings: Settings) -> Dataset:
    """As GRPOTrainer wants them. The scene itself stays here; the row has its number."""
    images = [grey(scene.image) if settings.blind else scene.image for scene in scenes]
    return Dataset.from_dict(
        {"prompt": [prompt(s.question) for s in scenes], "image": images, "scene": list(range(len(scenes)))}
    )


def rewards_for(model: SegmentingLlava, processor: Any, settings: Settings, scenes: list[Scene]) -> list[Any]:
    """The three rewards, in the order of WEIGHTS. The mask is made by the model as it is when it is asked."""

    def said(completions: list[Any]) -> list[str]:
        return [completion[0]["content"] for completion in completions]

    def format_reward(completions: list[Any], **_: Any) -> list[float]:
        return [format_score(text, shapes_of(settings.pictures)) for text in said(completions)]

    def object_reward(completions: list[Any], scene: list[int], **_: Any) -> list[float]:
        return [object_score(text, scenes[each]) for text, each in zip(said(completions), scene, strict=True)]

    def iou_reward(completion_ids: list[list[int]], scene: list[int], image: list[Any], **_: Any) -> list[float]:
        asked = [scenes[each] for each in scene]
        return iou_scores(model, processor, settings, asked, completion_ids, images=image)

    return [format_reward, object_reward, iou_reward]


def load_trained(settings: Settings, processor: Any) -> SegmentingLlava:
    """The model of a finished run."""
    path = settings.out / "model.safetensors"
    if not path.is_file():
        raise UsageError(
            f"{settings.out} holds no trained model. Train one: python -m recipes.grpo train --task vision."
        )
    model = make_model(settings, processor)
    try:
        model.load_state_dict(load_file(path))
    except RuntimeError:
        raise UsageError(f"{path} was trained with other sizes or pictures; evaluate it with those.") from None
    return model.to(settings.device).eval()


def in_words(found: dict[str, dict[str, float]]) -> str:
    """One line about both ways to ask."""
    sampled, greedy = found["sampled"], found["greedy"]
    return (
        f"reward {sampled['reward']:.3f} sampled ({greedy['reward']:.3f} greedy), right thing named "
        f"{sampled['named']:.2f} ({greedy['named']:.2f}), mask IoU {sampled['iou']:.3f} ({greedy['iou']:.3f})"
    )


def _curve(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    kept = {
        "step": "step", "reward": "reward", "reward_std": "spread", "grad_norm": "grad_norm", "entropy": "entropy",
        "rewards/iou_reward/mean": "iou", "rewards/object_reward/mean": "object",
    }  # fmt: skip
    return [{new: float(row[old]) for old, new in kept.items() if old in row} for row in history if "reward" in row]


def _prepared(folder: Path, settings: Settings) -> str | None:
    """The checkpoint to go on from, if that is asked and there is one; else a former run is renamed."""
    known = folder / "settings.json"
    if settings.resume and known.is_file():
        same_or_refuse(known, settings.plain())
        checkpoints = folder / "checkpoints"
        return get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    put_aside(folder, known.name)
    folder.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(settings.plain(), indent=1) + "\n", encoding="utf-8")
    return None


def _silent(_: str) -> None:
    pass
