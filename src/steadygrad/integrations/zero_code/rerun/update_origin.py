"""The program's line behind a bad update that torch's own code made: where a schedule made its rate non-finite, or
where the program asked for it."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ....detect.loop.program_frames import frames_of_program
from ....detect.tensors.foreign_objects import getattr
from ....records import Diagnosis
from ...loops.data_origin import MadeBad, origin_in

_BY_SCHEDULE = "the schedule was asked once more: this line of the program makes the learning rate non-finite"


def with_line_of_update(
    found: Diagnosis, optimizer: Optimizer, rate_made: Callable[[Optimizer], MadeBad | None]
) -> Diagnosis:
    """A diagnosis of trouble in an update, with a line of the program where it has none. Call while the update is being
    made. `rate_made` is asked for the line where a rate is not finite."""
    origin = found.origin
    if origin is None or origin.phase != "optimizer" or origin.source is not None:
        return found
    bad_rate = any(not math.isfinite(float(group["lr"])) for group in optimizer.param_groups)
    made = rate_made(optimizer) if bad_rate else None
    notes = (*found.notes, _BY_SCHEDULE) if made is not None else found.notes
    made = made or _asked_for()
    if made is None:
        return found
    place = replace(origin, source=made.stack[0], stack=made.stack, code_line=made.code_line)
    return replace(found, origin=place, notes=notes)


def origin_of_rate(
    schedules: Iterable[Any], supervised: Callable[[Sequence[Any]], AbstractContextManager[Any]]
) -> MadeBad | None:
    """Where a function that a schedule was given makes a rate non-finite, by calling it once more for this step. Raises
    what `supervised` and the function raise."""
    for schedule in schedules:
        for function in getattr(schedule, "lr_lambdas", None) or ():
            made = origin_in(partial(function, schedule.last_epoch), [function], supervised)
            if made is not None:
                return made
    return None


def _asked_for() -> MadeBad | None:
    """The program's line that calls `step` now; None where a library calls it."""
    frame = next(frames_of_program(), None)
    if frame is None or "step" not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
        return None
    return MadeBad(None, (f"{frame.f_code.co_filename}:{frame.f_lineno}",))
