"""A step of which only some rows fit into memory at a time.

The rows are run in parts, and the first part that fails stands for the step. That says something only where a failure
is one of rows: so the part must fail although a batch as small as it is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...detect.tensors.foreign_objects import getattr
from ...records import Diagnosis
from ..isolation.device_memory import NotEnoughMemory, is_out_of_memory, release_memory
from ..isolation.resource_limits import limits, ran_out, within_memory
from ..locate.bad_rows import num_rows
from .replay_step import CANNOT_RUN, replay
from .replayable import Replayable, StepFacts


class PartOfStep:
    """Some rows of one micro-batch, in place of a whole step. Satisfies `Replayable`."""

    def __init__(self, whole: Replayable, number: int, rows: range) -> None:
        self._whole, self.rows = whole, rows
        assert whole.facts.select_rows is not None
        self.batches: Sequence[Any] = [whole.facts.select_rows(whole.batches[number], list(rows))]
        ids = whole.facts.sample_ids[number] if len(whole.facts.sample_ids) > number else None
        mine = [ids[row] for row in rows] if ids is not None and len(ids) > rows[-1] else None
        self.facts: StepFacts = replace(whole.facts, sample_ids=(mine,), earlier=None, kept_steps=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def following(self, ahead: int) -> Sequence[Any] | None:
        return None


def in_parts(replayable: Replayable, answer: Callable[[Replayable], Diagnosis]) -> Diagnosis:
    """The answer for the whole step, or, where memory runs out, for the first part of it that fails and fits.

    Raises NotEnoughMemory where no part of it can stand for it.
    """
    found = within_memory(lambda: answer(replayable))
    if found is not None:
        return found
    select = replayable.facts.select_rows
    sizes = [num_rows(batch, select) for batch in replayable.batches] if select is not None else []
    share = max(sizes, default=1)
    while share > 1:
        share = (share + 1) // 2
        part = _first_bad(replayable, sizes, share)
        if part is None:
            continue
        found = within_memory(lambda step=part: answer(step))  # type: ignore[misc]
        if found is not None:
            rows = tuple(part.rows[row] for row in found.rows) if found.rows is not None else None
            note = f"rows {part.rows[0]} to {part.rows[-1]} were run by themselves: the whole batch did not fit"
            return replace(found, rows=rows, notes=(*found.notes, note))
        del part
    raise NotEnoughMemory(limits().shortage)


def _first_bad(replayable: Replayable, sizes: Sequence[int], share: int) -> PartOfStep | None:
    """None where no part fails, where one cannot be run, or where all fail: then it need not be the rows."""
    bad, finite = None, False
    for number, size in enumerate(sizes):
        for start in range(0, size, share):
            rows = range(start, min(start + share, size))
            fails = _fails(replayable, replayable.batches[number], rows)
            if fails is None:
                return None
            finite = finite or not fails
            bad = bad or ((number, rows) if fails else None)
            if bad is not None and (finite or _others_are_finite(replayable, share)):
                return PartOfStep(replayable, *bad)
    return None


def _others_are_finite(replayable: Replayable, share: int) -> bool:
    """Whether as few rows of a good batch are finite."""
    following = getattr(replayable, "following", None)
    batches = following(1) if following is not None else None
    if not batches or num_rows(batches[0], replayable.facts.select_rows) < share:
        return False
    return _fails(replayable, batches[0], range(share)) is False


def _fails(replayable: Replayable, batch: Any, rows: range) -> bool | None:
    """Whether the step fails with these rows of a micro-batch alone; None where it cannot be run with them."""
    until, select = "forward" if replayable.facts.symptom == "nan_loss" else "backward", replayable.facts.select_rows
    assert select is not None
    try:
        seen = replay(replayable, batches=[select(batch, list(rows))], until=until, altered=True)
    except CANNOT_RUN as error:
        if is_out_of_memory(error):
            ran_out(error)
            release_memory()
        return None
    return not seen.loss_finite or bool(seen.bad_gradients)
