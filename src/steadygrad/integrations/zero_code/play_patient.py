"""A refused step of a loop that was cut out of its source, as a patient of the clinic.

Stronger than replaying the model's calls alone: the loss is computed again by the loop's own lines, so an origin
outside of the model is found and remedies can be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from ...diagnosis.bedside import narrow
from ...diagnosis.patient import StepFacts
from ...engine.forward_state import Entry, ForwardState
from ...engine.training_state import TrainingState
from ..desk import Desk
from .calls import Call
from .patient import CallsPatient
from .slices import Play


class PlayPatient(CallsPatient):
    """Satisfies `clinic.patient.Patient`: its batches are the names that the loop's lines read."""

    def __init__(
        self, desk: Desk, state: TrainingState, forward: ForwardState, entry: Entry, calls: Sequence[Call],
        plays: Sequence[Play], before: Sequence[Sequence[Play]], facts: StepFacts, loss_scale: float,
    ) -> None:  # fmt: skip
        super().__init__(desk, state, forward, entry, calls, facts, 0.0)
        self.batches = [PlayBatch(play, play.batch) for play in plays]
        self._before = [group for group in before if not any(play.overwritten for play in group)]
        self._loss_scale = loss_scale

    def following(self, ahead: int) -> Sequence[Any] | None:
        """What comes next is not known yet, so batches from just before stand in for it."""
        if ahead > len(self._before):
            return None
        return [PlayBatch(play, play.batch) for play in self._before[ahead - 1]]

    def prepare_following(self, ahead: int) -> None:
        for parameter in self._desk.parameters:
            parameter.grad = None

    def reproduces(self) -> bool:
        """Whether the lines give the loss that the loop had, to the bit. Call inside `examining`."""
        self.restore()
        for batch in self.batches:
            loss = self.forward(batch)["loss"].detach() * (self._loss_scale if batch.play.slice.scaled else 1.0)
            if not bool(torch.isclose(loss.double(), batch.play.loss.double(), rtol=1e-6, atol=0.0, equal_nan=True)):
                return False
        return True

    def sound(self) -> bool:
        """Whether losses and gradients come out finite: with several ranks, whether another one was to blame."""
        with self.examining():
            self.restore()
            for batch in self.batches:
                terms = self.forward(batch)
                if not bool(torch.isfinite(terms["loss"])):
                    return False
                self.backward(terms)
            gradients = [parameter.grad for parameter in self._desk.parameters if parameter.grad is not None]
            return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def forward(self, batch: PlayBatch) -> Mapping[str, Tensor]:  # type: ignore[override]
        return {"loss": batch.play.again(batch.names).reshape(())}

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        loss = terms["loss"]
        if loss.requires_grad:
            (loss * self._loss_scale if self._loss_scale != 1.0 else loss).backward()  # type: ignore[no-untyped-call]

    def commit(self) -> None:
        """The optimizer's step, with the loss scale divided out first as a GradScaler does."""
        if self._loss_scale != 1.0:
            for parameter in self._desk.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._loss_scale)
        super().commit()


class PlayBatch(Mapping[str, Any]):
    """The tensors that the lines read, by name, bound to the lines."""

    def __init__(self, play: Play, names: Mapping[str, Any]) -> None:
        self.play, self.names = play, names

    def __getitem__(self, key: str) -> Any:
        return self.names[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


# The clinic maps over batches as torch does, for one in float64: it must see into this one.
register_pytree_node(
    PlayBatch,
    lambda batch: (list(batch.names.values()), (batch.play, list(batch.names))),
    lambda values, about: PlayBatch(about[0], dict(zip(about[1], values, strict=True))),
)


def rows_of_play(size: int | None) -> Any:
    """How to leave all but some rows of such a batch out; `size` is how many rows the model was called with."""

    def select(batch: PlayBatch, rows: Sequence[int]) -> PlayBatch:
        if size is None:
            return batch
        return PlayBatch(batch.play, {name: narrow(value, list(rows), size) for name, value in batch.names.items()})

    return select
