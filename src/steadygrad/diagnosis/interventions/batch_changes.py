"""Without the rows, without the batch, or with its gradients made harmless: what can be done without touching code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...detect.tensors.readable_tensors import can_be_copied, write_values
from ..locate.bad_rows import num_rows
from ..replay.replay_observation import ReplayObservation, absmaxes
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable

MAX_SKIPS = 3
"""Skipping more often than this in a row is not a remedy, it is standing still."""


class DropRows(ReplayChange):
    """The failing batch without its guilty rows."""

    alters_rows = True

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = frozenset(rows)

    def batch(self, replayable: Replayable, batch: Any) -> Any:
        select = replayable.facts.select_rows
        assert select is not None
        return select(batch, [row for row in range(num_rows(batch, select)) if row not in self.rows])


class SkipBatch(ReplayChange):
    """No update where the loss or a gradient is not finite. Nothing else is undone: buffers keep what forward wrote."""

    alters_values = False

    def __init__(self) -> None:
        self.num_skipped = 0

    def wants_backward(self, seen: ReplayObservation) -> bool:
        return seen.loss_finite

    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        if seen.loss_finite and not seen.bad_gradients:
            with self._refusing(replayable):
                replayable.commit()
            return
        self.num_skipped += 1
        for optimizer in replayable.optimizers:
            optimizer.zero_grad()

    @contextmanager
    def _refusing(self, replayable: Replayable) -> Iterator[None]:
        """Optimizers refuse a step whose gradients went bad after backward (a hook, a clip, a flipped bit)."""
        before = [(optimizer, optimizer.__dict__.get("step")) for optimizer in replayable.optimizers]
        for optimizer, _ in before:
            optimizer.step = self._refuser(optimizer, optimizer.step)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for optimizer, own in before:
                if own is None:
                    del optimizer.step
                else:
                    optimizer.step = own  # type: ignore[method-assign]

    def _refuser(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(*args: Any, **kwargs: Any) -> Any:
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if all(map(math.isfinite, absmaxes(grads))):
                return step(*args, **kwargs)
            self.num_skipped += 1
            return None

        return refusing


class TrueSkip(SkipBatch):
    """Like skipping, also where gradients were made harmless, and the buffers go back to before the batch."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[str, torch.Tensor] = {}

    def prepared(self, replayable: Replayable) -> None:
        buffers = replayable.model.named_buffers()
        self._buffers = {name: buffer.detach().clone() for name, buffer in buffers if can_be_copied(buffer)}

    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        before = self.num_skipped
        if seen.gradients and seen.grad_norm == 0:
            self.num_skipped += 1
            for optimizer in replayable.optimizers:
                optimizer.zero_grad()
        else:
            super().commit(replayable, seen)
        if self.num_skipped > before:
            for name, buffer in replayable.model.named_buffers():
                if name in self._buffers:
                    write_values(buffer.data, self._buffers[name])


class Clip(ReplayChange):
    """Clip the total gradient norm to 1 before the update."""

    alters_values = False

    def after_backward(self, replayable: Replayable) -> None:
        torch.nn.utils.clip_grad_norm_(list(replayable.model.parameters()), 1.0)


class ZeroBadGradients(ReplayChange):
    """What is often done first: bad gradients become zeros and the step is taken."""

    alters_values = False

    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        for parameter in replayable.model.parameters():
            if parameter.grad is not None and not parameter.grad.is_sparse:
                torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)
        replayable.commit()
