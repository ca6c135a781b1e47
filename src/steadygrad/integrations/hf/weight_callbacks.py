"""Callbacks that average or copy the weights: they follow the updates that were applied, and not those that were
refused.

TRL moves a reference model or a teacher after each of the trainer's steps (`SyncRefModelCallback` and its relatives)
and averages weights (`BEMACallback`). A refused step has changed no weight, so it must not count in an average, nor
in "every n steps": such a callback is left out for it, and is told the number of updates that were applied instead of
`global_step`. Steps that a loss scale drops are the framework's own, and are left as they are without a guard.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..loops.loop_guard import LoopGuard
from ..loops.patching import Patches

_FOLLOWS = frozenset({"SyncRefModelCallback", "BEMACallback", "PEFTAdapterEMACallback"})


def hold_followers(trainer: Any, loop: LoopGuard, patches: Patches) -> None:
    """From now on the callbacks of this trainer that follow its weights hear of applied updates only."""
    for callback in trainer.callback_handler.callbacks:
        if _FOLLOWS & {kind.__name__ for kind in type(callback).__mro__}:
            patches.around(callback, "on_step_end", _Held(loop))


class _Held:
    """Stands before one callback's `on_step_end`."""

    def __init__(self, loop: LoopGuard) -> None:
        self._loop = loop
        self._refused = self._refused_now()

    def _refused_now(self) -> int:
        ledger = self._loop._engine.log.ledger
        return ledger.skipped - ledger.overflows

    def __call__(self, original: Callable[..., Any], args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        before, self._refused = self._refused, self._refused_now()
        if self._refused > before:
            return None
        if self._refused:
            state = copy.copy(state)
            state.global_step -= self._refused
        return original(args, state, control, **kwargs)
