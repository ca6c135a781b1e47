"""A transformers Trainer, or one of TRL's, guarded: see `integrations.hf.trainer_guard` for where the guard listens."""

from __future__ import annotations

from typing import Any

from .hf.trainer_guard import TrainerGuard


def attach_trainer(trainer: Any, **options: Any) -> TrainerGuard:
    """What `sg.attach(trainer, ...)` does for a transformers or TRL trainer."""
    return TrainerGuard(trainer, **options)
