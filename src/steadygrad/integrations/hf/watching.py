"""Where an update cannot be refused, loss and gradient norm are still judged, recorded and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...engine.books import Books
from ...engine.shield import Shield
from ...journal import Journal
from ...policy import Capabilities, Policy
from ...records import Incident, Reading
from ..patching import Patches


class TrainerWatch:
    """Reads what a trainer computes anyway, and changes nothing. One host read a step."""

    def __init__(self, trainer: Any, patches: Patches, why: str, *, run_dir: Any) -> None:
        self.why = why
        self._trainer = trainer
        self._journal = Journal(run_dir, names=[], run_config={"policy": "observe", "only_watching": why})
        self._shield = Shield()
        self._shield.report_to(self._journal.event)
        rank = int(getattr(trainer.args, "process_index", 0))
        self._books = Books(
            Policy.named("observe"), self._journal, self._shield, run=self._journal.run_id, rank=rank
        )  # fmt: skip
        self._losses: list[Tensor] = []
        self._step = 0
        patches.around(trainer, "training_step", self._training_step)
        if hasattr(trainer, "_get_grad_norm"):
            patches.around(trainer, "_get_grad_norm", self._norm)
        else:
            patches.around(trainer.accelerator, "clip_grad_norm_", self._norm)

    @property
    def incidents(self) -> list[Incident]:
        return list(self._books.incidents)

    def summary(self) -> dict[str, Any]:
        return self._books.summary()

    def close(self) -> None:
        with self._shield("journal", None):
            self._journal.close()

    def _training_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        if isinstance(loss, Tensor):
            self._losses.append(loss.detach())
        return loss

    def _norm(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        with self._shield("watch", None):
            self._judge(norm)
        return norm

    def _judge(self, norm: Any) -> None:
        losses, self._losses = self._losses, []
        if not losses:
            return
        shown = torch.stack([loss.float().reshape(()) for loss in losses]).sum()
        if isinstance(norm, Tensor):
            total = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            loss_now, norm_now = torch.stack([shown, total.detach().to(shown)]).tolist()
        else:
            loss_now, norm_now = float(shown), float(norm) if norm is not None else 0.0
        reading = Reading(
            step=self._step, loss=loss_now, grad_norm=norm_now, lr=float(self._trainer._get_learning_rate())
        )  # fmt: skip
        self._step += 1
        findings = self._books.judge(reading)
        decision = self._books.decide(reading, findings, Capabilities())
        self._books.enter(reading, decision, applied=True)
