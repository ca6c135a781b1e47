"""A window of micro-batches on its way to an update, and a step whose answer is still on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...detect.history import RefusalLimits
from ...records import Decision, Outcome
from ..state.batch_buffer import NOT_AGAIN
from ..state.forward_state import Entry
from .step_row import Layout
from .user_step import Terms

if TYPE_CHECKING:
    from ..engine import Step


@dataclass(slots=True)
class Window:
    """Micro-batches accumulated so far, with the state before the first of them."""

    entry: Entry | None = None
    batches: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    terms: list[Terms] = field(default_factory=list)
    left_over: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Parameters that had a gradient before the first of them, from someone else's backward, and what it was."""

    def add(self, batch: Any, key: str, terms: Terms, entry: Entry) -> None:
        if self.entry is None:
            self.entry = entry
        self.batches.append(batch)
        self.keys.append(key)
        self.terms.append(terms)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def fed(self) -> list[tuple[Any, str]]:
        """Its micro-batches with their keys, to be fed again."""
        return list(zip(self.batches, self.keys, strict=True))

    def without(self, keys: set[str]) -> Window:
        """The window with these micro-batches left out of it, from the same beginning."""
        kept = [place for place, key in enumerate(self.keys) if key not in keys]
        return Window(
            self.entry, [self.batches[i] for i in kept], [self.keys[i] for i in kept], [self.terms[i] for i in kept]
        )

    @property
    def can_run_again(self) -> bool:
        """Whether all of it can be fed again, for a replay or another look."""
        return all(batch is not NOT_AGAIN for batch in self.batches)

    @property
    def key(self) -> str:
        return "+".join(self.keys)


def left_over(parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Gradients that lie about before a window begins. There are none, so it costs a look at each parameter."""
    return [(parameter, parameter.grad.clone()) for parameter in parameters if parameter.grad is not None]


@dataclass(slots=True)
class PendingStep:
    """A committed step that the host has not judged yet."""

    step: Step
    row_transfer: Any
    layout: Layout
    limits: RefusalLimits
    lr: float
    fresh: list[tuple[Optimizer, list[Tensor]]]


def answer_for(outcome: Outcome, last: Outcome) -> None:
    """Let a batch that was run again answer for the outcome its first run promised."""
    if last.accumulating:
        outcome.accumulating = True
    outcome.resolve(decision=last.decision or Decision(step=last.step), reading=last.reading, applied=last.applied)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a device or on the host. What the device's allocator holds unused is then freed."""
    if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    return isinstance(error, torch.OutOfMemoryError | MemoryError)
