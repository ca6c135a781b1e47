"""The first time that a step is run again, its calls are looked at before they are made.

What the step holds is restored, or stands aside, see `StandIns`; what it writes to files that it opens goes to memory.
A call that would leave a trace anywhere else ends the run, and so does every further one for the same reason: there is
no diagnosis then, and nothing has happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .side_effects import calls_supervised
from .sinks import HasEffect, nothing_on_disk
from .stand_ins import StandIns


class Rehearsal:
    """Around each run of a step's forward."""

    def __init__(self, stand_ins: StandIns, *, runs: int = 1) -> None:
        self._stand_ins, self._left = stand_ins, runs
        self._why: str | None = None

    def spare_memory(self) -> None:
        """Look at no further calls: Python keeps the local variables of what it calls alive for longer meanwhile, and
        with them activations. What the step is known to hold stands aside all the same."""
        self._left = 0

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Raises HasEffect where the run is ended."""
        if not self._stand_ins.strict:
            with nothing_on_disk():
                yield
            return
        if self._why is not None:
            raise HasEffect(self._why)
        try:
            with nothing_on_disk():
                if self._left > 0:
                    with calls_supervised(self._stand_ins):
                        yield
                    self._left -= 1
                else:
                    yield
            if self._stand_ins.refused is not None:
                raise HasEffect(self._stand_ins.refused)
        except HasEffect as effect:
            self._why = str(effect)
            raise
