"""A trainer whose updates cannot be refused: loss and gradient norm are still judged and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ..loops.patching import Patches
from ..loops.reported_loop import ReportedLoop


class ObservedTrainer(ReportedLoop):
    """Reads what a trainer computes anyway, and changes nothing. One host read a step."""

    def __init__(self, trainer: Any, patches: Patches, why: str, *, run_dir: Any) -> None:
        rank = int(getattr(trainer.args, "process_index", 0))
        super().__init__((), run_dir=run_dir, rank=rank, shown={"only_watching": why})
        self.why = why
        self._trainer = trainer
        self._losses: list[Tensor] = []
        patches.around(trainer, "training_step", self._training_step)
        if hasattr(trainer, "_get_grad_norm"):
            patches.around(trainer, "_get_grad_norm", self._norm)
        else:
            patches.around(trainer.accelerator, "clip_grad_norm_", self._norm)

    def _training_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
        return loss

    def _norm(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        with self.barrier("watch", None):
            self._record(norm)
        return norm

    def _record(self, norm: Any) -> None:
        losses, self._losses = self._losses, []
        if not losses:
            return
        shown = torch.stack([loss.float().reshape(()) for loss in losses]).sum()
        if isinstance(norm, Tensor):
            total = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            loss_now, norm_now = torch.stack([shown, total.detach().to(shown)]).tolist()
        else:
            loss_now, norm_now = float(shown), float(norm) if norm is not None else 0.0
        self.report(loss_now, norm_now, lr=float(self._trainer._get_learning_rate()))
