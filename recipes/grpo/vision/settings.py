"""Every number of the vision task, in one place."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from steadygrad import UsageError

from .sources import there_or_refuse

DIGITS_WARM_STEPS = 1600


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes for one CPU core: some 700,000 weights, pictures of 32 x 32 pixels in four patches."""

    out: Path = Path("runs/recipes/grpo/vision")
    seed: int = 0
    device: str = "auto"
    resume: bool = False
    show: bool = True

    pictures: str = "shapes"
    """shapes (on noise), photographs (with shapes on them) or digits (written by hand)."""

    image_size: int = 32
    patch_size: int = 16
    vision_width: int = 64
    vision_layers: int = 2
    width: int = 96
    layers: int = 3
    mask_width: int = 8

    warm_steps: int = 450
    """Warm-start steps that are told the answer to the question; then come `loose_steps` about any shape."""
    loose_steps: int = 150
    loose_truth: float = 0.1
    """Share of the loose steps' rows that are about the shape asked for all the same."""
    warm_batch: int = 64
    warm_rate: float = 3e-3

    steps: int = 150
    prompts: int = 16
    generations: int = 8
    rate: float = 3e-4
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    clip_value: float = 30.0
    """Sampled logits are held within +- this; 0 for no limit."""
    warmup_steps: int = 10
    train_vision: bool = False
    blind: bool = False
    """Every picture of GRPO is a grey one: what can be learnt from the questions alone."""

    measured_on: int = 512

    @classmethod
    def quick(cls) -> Settings:
        """Half a minute or so: it runs and the reward begins to rise, no more is claimed."""
        return cls(warm_steps=150, loose_steps=50, steps=20, prompts=8, generations=8, measured_on=128)

    @classmethod
    def of(cls, pictures: str, *, quick: bool = False) -> Settings:
        """The recipe for these pictures. Ten digits in many hands take longer to tell apart than four shapes."""
        settings = replace(cls.quick() if quick else cls(), pictures=pictures)
        return replace(settings, warm_steps=DIGITS_WARM_STEPS) if pictures == "digits" and not quick else settings

    def checked(self) -> Settings:
        """Itself on the device that is there, or a sentence about what cannot work."""
        there_or_refuse(self.pictures)
        if self.image_size % self.patch_size:
            raise UsageError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}.")
        if self.generations < 2:
            raise UsageError("generations must be at least 2: an advantage is a comparison within a group.")
        if self.clip_value < 0:
            raise UsageError(f"clip_value must be above 0, or 0 for no limit, not {self.clip_value}.")
        for name in ("warm_batch", "steps", "prompts", "measured_on"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
        return replace(self, device=chosen if self.device == "auto" else self.device)

    @property
    def image_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    def plain(self) -> dict[str, Any]:
        """What a result depends on, for JSON: everything but where it is kept and how it is shown."""
        kept = asdict(self)
        for name in ("out", "resume", "show"):
            del kept[name]
        return kept

    def warm_plain(self) -> dict[str, Any]:
        """What the warm start depends on."""
        after = (
            "steps",
            "prompts",
            "generations",
            "rate",
            "temperature",
            "max_grad_norm",
            "warmup_steps",
            "clip_value",
        )
        left_out = {*after, "train_vision", "blind", "measured_on"}
        return {name: value for name, value in self.plain().items() if name not in left_out}


def same_or_refuse(path: Path, wanted: dict[str, Any]) -> None:
    """Refuses to go on with a run that was begun with other numbers."""
    if path.is_file() and (found := json.loads(path.read_text(encoding="utf-8"))) != wanted:
        changed = sorted(name for name in wanted if found.get(name) != wanted[name])
        raise UsageError(f"The run in {path.parent} was begun with another {', '.join(changed)}; resume it with that.")
