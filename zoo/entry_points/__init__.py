"""The ways in which a user runs steadygrad on a training loop, each as a tool of the scorer.

`guard` owns the loop, `attach` sits at the loop's own `optimizer.step()`, `run` is `steady run` on a plain script.
`upper_bound` is no entry point: it replays every step of the loop with everything measured, and shows what the
detectors and the diagnosis could reach with that.
"""

from __future__ import annotations

from collections.abc import Callable

from ..truth import Answer, Subject
from .attach import attach
from .guard import guard
from .steady_run import steady_run
from .upper_bound import upper_bound

ENTRY_POINTS: dict[str, Callable[[Subject], Answer]] = {"guard": guard, "attach": attach, "run": steady_run}
UPPER_BOUND: dict[str, Callable[[Subject], Answer]] = {"upper_bound": upper_bound}
