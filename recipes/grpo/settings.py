"""Every number of a run, for each task. They are kept beside what was trained, and --resume asks for the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from recipes.common.speaking import put_aside
from steadygrad import UsageError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One GRPO run on text. The field report's: clipping at 1.0 and ten steps of warm-up."""

    seed: int = 0
    steps: int = 30
    batch_size: int = 32
    group: int = 8
    max_tokens: int = 12
    learning_rate: float = 5e-3
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    clip_value: float = 30.0
    """Sampled logits are held within +- this; 0 for no limit."""
    warmup_steps: int = 10
    save_every: int = 50
    rank: int = 16
    precision: str = "fp32"
    questions: int = 0

    def check(self) -> Settings:
        for name in ("steps", "batch_size", "group", "max_tokens", "learning_rate", "save_every"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}.")
        if self.clip_value < 0:
            raise UsageError(f"clip_value must be above 0, or 0 for no limit, not {self.clip_value}.")
        if self.batch_size % self.group:
            raise UsageError(f"A batch of {self.batch_size} completions cannot be cut into groups of {self.group}.")
        return self


def prepared(out: Path, settings: Settings, *, resume: bool) -> str | None:
    """The checkpoint to go on from, if that is asked; else a former run of this recipe is renamed.

    The number of steps may differ: a run that is done can be made longer.
    """
    known, told = out / "settings.json", asdict(settings)
    if resume:
        found = get_last_checkpoint(str(out / "checkpoints")) if (out / "checkpoints").is_dir() else None
        if found is None:
            raise UsageError(f"There is nothing to resume in {out}: it holds no checkpoint.")
        if known.is_file() and _but_steps(json.loads(known.read_text())) != _but_steps(told):
            raise UsageError(f"The run in {out} had other settings ({known}): resume it with the same ones.")
        return str(found)
    put_aside(out, known.name)
    out.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(told, indent=2) + "\n")
    return None


def _but_steps(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name != "steps"}
