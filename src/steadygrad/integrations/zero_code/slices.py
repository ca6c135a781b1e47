"""The loop's own lines from the model's call to backward, kept for each micro-batch so that they can be run again.

At the model's first call the stack is walked up once; at backward it is walked again, and the nearest frame that is in
both is the loop's. Its lines between the two are cut out the first time (see `loop_slice`) and from then on the names
they read are remembered as they are when the model is first called. Host work only: a dictionary of a few names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from ...engine.rng import RngState, put_rng
from ...engine.tape import tensors_in
from ..loop_slice import LoopSlice, cut
from .calls import Call, autocast_now

_MAX_DEPTH = 60
_MAX_PLAYS = 64
_KEPT_BEFORE = 2


@dataclass(slots=True)
class Play:
    """One micro-batch's lines with the values they read."""

    slice: LoopSlice
    taken: dict[str, Any]
    module_globals: dict[str, Any]
    rng: RngState
    autocast: dict[str, torch.dtype]
    loss: Tensor
    """What backward was called on, without its graph."""
    versions: tuple[int, ...]

    @property
    def overwritten(self) -> bool:
        """Whether somebody wrote into the tensors that were read."""
        return self.versions != _versions(self.batch)

    @property
    def batch(self) -> dict[str, Any]:
        """Of the values read, those that hold tensors and are not a model: the batch, and what goes with it."""
        return {name: value for name, value in self.taken.items() if _is_data(value)}

    def again(self, batch: Mapping[str, Any]) -> Tensor:
        """The loss by the loop's own lines, with their random numbers and precision."""
        put_rng(self.rng)
        with ExitStack() as stack, torch.enable_grad():
            for device, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(device, dtype=dtype))
            return self.slice.run({**self.taken, **batch}, self.module_globals)


class Slices:
    """Listens at the model's calls and at backward. `plays` are those since the last update."""

    def __init__(self) -> None:
        self.plays: list[Play] = []
        self.before: list[list[Play]] = []
        """The same of the last updates before, oldest first: for following a remedy a little further."""
        self.why_not: str | None = None
        """Why the last micro-batch could not be kept, as a clause."""
        self._known: dict[tuple[CodeType, int, int], LoopSlice | str] = {}
        self._by_owner: dict[CodeType, LoopSlice] = {}
        self._seen: dict[int, tuple[FrameType, int]] = {}
        self._early: dict[int, dict[str, Any]] = {}
        self._rng: RngState | None = None

    def called(self, call: Call) -> None:
        """A model is called. Only the first call of a micro-batch matters."""
        if self._seen:
            return
        self._rng = call.rng
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_DEPTH):
            if frame is None:
                break
            self._seen[id(frame)] = (frame, frame.f_lineno)
            known = self._by_owner.get(frame.f_code)
            if known is not None:
                self._early[id(frame)] = known.take(frame)
            frame = frame.f_back

    def backward_begins(self, loss: Tensor) -> None:
        """Backward is called on a loss."""
        seen, early, rng = self._seen, self._early, self._rng
        self._seen, self._early, self._rng = {}, {}, None
        if not seen or rng is None or len(self.plays) >= _MAX_PLAYS:
            self.why_not = "the model was not called before backward"
            return
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_DEPTH):
            if frame is None or id(frame) in seen:
                break
            frame = frame.f_back
        if frame is None or id(frame) not in seen:
            self.why_not = "the model's call and backward have no code in common"
            return
        key = (frame.f_code, seen[id(frame)][1], frame.f_lineno)
        if key not in self._known:
            self._known[key] = cut(frame, key[1], key[2], loss)
        found = self._known[key]
        if isinstance(found, str):
            self.why_not = found
            return
        self._by_owner[frame.f_code] = found
        taken = early.get(id(frame)) or found.take(frame)
        play = Play(found, taken, frame.f_globals, rng, autocast_now(), loss.detach(), ())
        play.versions = _versions(play.batch)
        self.plays.append(play)
        self.why_not = None

    def forget(self) -> None:
        """A new window begins."""
        if self.plays:
            self.before = [*self.before[1 - _KEPT_BEFORE :], self.plays]
            self.plays = []
        self._seen, self._early, self._rng = {}, {}, None


def _is_data(value: Any) -> bool:
    if isinstance(value, torch.nn.Module) or callable(value):
        return False
    return next(tensors_in(value), None) is not None


def _versions(batch: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors_in(batch))
