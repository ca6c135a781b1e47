"""Findings that `sg.numerics` published since the last step, for the guard to act on.

The board is looked at only if someone has loaded it: a run that uses no part of `steadygrad.numerics` pays a lookup.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from ...records import Finding, Reading, Severity

BOARD = "steadygrad.numerics.published_findings"


def with_numerics_findings(reading: Reading, *, made: bool, alone: bool) -> Reading:
    """The reading with everything that waits on the board, taken off it. Never syncs with a device.

    What is fatal and was posted after an update was `made` is for the update that comes. Unless the process is `alone`
    nothing is fatal any more: what one rank was told must not bind the others.
    """
    room: Any = sys.modules.get(BOARD)
    if room is None or (made and room.board().urgent):
        return reading
    found: tuple[Finding, ...] = room.board().take(step=reading.step, rank=reading.rank, wait=False)
    if made or not alone:
        found = tuple(replace(each, severity=Severity.WARNING) if is_fatal((each,)) else each for each in found)
    return replace(reading, posted=found) if found else reading


def take_earlier() -> tuple[Finding, ...]:
    """What was posted before a run began, taken off the board: it belongs to none of its steps."""
    room: Any = sys.modules.get(BOARD)
    return () if room is None else tuple(room.board().take(wait=False))


def urgent() -> bool:
    """Whether something fatal waits, so that the coming update must be judged before it is applied."""
    room: Any = sys.modules.get(BOARD)
    return room is not None and room.board().urgent


def is_fatal(posted: tuple[Finding, ...]) -> bool:
    return any(found.severity is Severity.FATAL for found in posted)


def muted() -> AbstractContextManager[Any]:
    """Within the block nothing is posted by this thread: its steps are only run again."""
    room: Any = sys.modules.get(BOARD)
    return nullcontext() if room is None else room.board().muted()
