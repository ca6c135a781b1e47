"""A window of micro-batches on its way to an update, and a step whose answer is still on the device."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...detect.history import RefusalLimits
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.kept_content import KeptContent
from ...detect.tensors.torch_private import free_cublas_workspaces
from ...records import Decision, Outcome
from ..state.batch_buffer import NOT_AGAIN
from ..state.forward_state import Entry
from .step_row import Layout
from .user_step import Terms

if TYPE_CHECKING:
    from ..engine import Step

T = TypeVar("T")


@dataclass(slots=True)
class Window:
    """Micro-batches accumulated so far, with the state before the first of them."""

    entry: Entry | None = None
    batches: list[Any] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    terms: list[Terms] = field(default_factory=list)
    contents: list[KeptContent | None] = field(default_factory=list)
    """By which a write into a micro-batch's tensors is seen, where they are kept by reference."""
    left_over: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Parameters that had a gradient before the first of them, from someone else's backward, and what it was."""

    def add(self, batch: Any, key: str, terms: Terms, entry: Entry, content: KeptContent | None = None) -> None:
        if self.entry is None:
            self.entry = entry
        self.batches.append(batch)
        self.keys.append(key)
        self.terms.append(terms)
        self.contents.append(content)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def fed(self) -> list[tuple[Any, str]]:
        """Its micro-batches with their keys, to be fed again."""
        return list(zip(self.batches, self.keys, strict=True))

    def without(self, keys: set[str]) -> Window:
        """The window with these micro-batches left out of it, from the same beginning."""
        kept = [place for place, key in enumerate(self.keys) if key not in keys]
        lists = (self.batches, self.keys, self.terms, self.contents)
        return Window(self.entry, *([each[i] for i in kept] for each in lists))  # type: ignore[arg-type]

    @property
    def can_run_again(self) -> bool:
        """Whether all of it can be fed again, for a replay or another look."""
        return all(batch is not NOT_AGAIN for batch in self.batches)

    def as_fed(self, copy_of: Callable[..., Any], later: Sequence[KeptContent | None] = ()) -> list[str]:
        """Put a copy in the place of every micro-batch whose tensors were written to since it was fed, or NOT_AGAIN
        where there is none; the keys of those. `later` are the contents of what was fed behind this window: where they
        share memory of a device, only a comparison tells."""
        lost, after = list[str](), [*self.contents, *later]
        for place, (batch, content) in enumerate(zip(self.batches, self.contents, strict=True)):
            if content is None:
                continue
            if content.written:
                self.batches[place] = copy_of(self.keys[place])
            elif _refed(content, after[place + 1 :]):
                self.batches[place] = copy_of(self.keys[place], batch)
            else:
                continue
            self.contents[place] = None
            if self.batches[place] is NOT_AGAIN:
                lost.append(self.keys[place])
        return lost

    @property
    def key(self) -> str:
        return "+".join(self.keys)


def _refed(content: KeptContent, later: Sequence[KeptContent | None]) -> bool:
    return any(each is not None and content.shares_memory(each) for each in later)


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


def with_room(work: Callable[[], T], undo: Callable[[], Any]) -> T:
    """A run of ours that has fit before, as the program's own. Out of memory, what it began is undone, everything that
    is not needed is given back, and it is tried once more."""
    try:
        return work()
    except Exception as error:
        original = getattr(error, "original", error)
        if not out_of_memory(original):
            raise
        for each in (original, error):
            traceback.clear_frames(each.__traceback__)  # they hold a whole forward pass
        del original
    undo()
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        if free_cublas_workspaces is not None:
            free_cublas_workspaces()
        torch.cuda.empty_cache()
    return work()


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a device or on the host. What the device's allocator holds unused is then freed."""
    if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    return isinstance(error, torch.OutOfMemoryError | MemoryError)
