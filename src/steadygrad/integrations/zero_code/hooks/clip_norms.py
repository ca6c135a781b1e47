"""What is about to be clipped: its norms, before a NaN norm turns every gradient NaN and the culprit is lost."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....detect.gradient_norms import GradientProbe, Gradients, clip_exact
from ....engine.fault_barrier import FaultBarrier
from ....records.errors import SteadyError

_grad, _trains = operator.attrgetter("grad"), operator.attrgetter("requires_grad")
_EMPTY, _SOMETHING = 12, 1 << 30
_DENSE = frozenset({Tensor, type(None)})


class ClipNorms:
    """Stands at `clip_grad_norm_`. Remembers what it measured until the update."""

    def __init__(self, barrier: FaultBarrier) -> None:
        self._barrier = barrier
        self._clips: dict[tuple[int, ...], GradientProbe] = {}
        self._clipped: tuple[tuple[int, ...], Gradients] | None = None
        self._limit: float | None = None
        self._num_clips = 0
        self._empty, self._in_vain = 0, set[int]()
        self.limit: float | None = None
        """What the gradients of the update under way were clipped to, if they were."""
        self.unknown = False
        """Whether they were clipped in a way that cannot be repeated from here."""

    def take(self, parameters: Sequence[Tensor]) -> Gradients | None:
        """What these very parameters' gradients were before they were clipped since the last update, if they were."""
        clipped, self._clipped = self._clipped, None
        self.limit, self._limit = self._limit, None
        num_clips, self._num_clips = self._num_clips, 0
        known = clipped is not None and clipped[0] == tuple(map(id, filter(_trains, parameters)))
        self.unknown = num_clips > 1 or (num_clips == 1 and (not known or self.limit is None))
        return clipped[1] if clipped is not None and known else None

    def clip(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Measure what is about to be clipped. Where torch's own arithmetic is known to the bit, its pass over the
        gradients is ours, so that looking costs nothing. Does not sync."""
        self._num_clips += 1
        if not args or isinstance(args[0], Tensor):
            return original(*args, **kwargs)
        everything = list(args[0])  # a generator can be walked only once
        if not everything:
            return original((nothing for nothing in everything), *args[1:], **kwargs)
        try:  # not `with self._barrier`: this is every step's path
            clipped = self._clip(everything, args[1:], kwargs)
        except SteadyError:
            raise
        except Exception as fault:
            self._barrier.note("clip", fault)
            clipped = None
        norm = original(everything, *args[1:], **kwargs) if clipped is None else clipped
        if self._empty < _EMPTY:
            with self._barrier("clip", None):
                self._note(everything, norm)
        return norm

    def _note(self, everything: list[Tensor], norm: Any) -> None:
        """Was there anything to clip? Reads a norm on the host, of the first calls alone."""
        on_host = type(norm) is Tensor and norm.device.type == "cpu" and norm.numel() == 1
        nothing = on_host and float(norm) == 0.0
        self._empty = self._empty + 1 if nothing else _SOMETHING
        self._in_vain = {id(parameter) for parameter in filter(_trains, everything)} if self._empty == _EMPTY else set()

    def found_nothing(self, parameters: Sequence[Tensor]) -> str:
        """How nothing was there whenever these parameters' gradients were clipped: a sentence, or nothing."""
        if not self._in_vain or not any(id(parameter) in self._in_vain for parameter in parameters):
            return ""
        return f"clip_grad_norm_ was called {_EMPTY} times and found gradients of zero, or none, each time"

    def _clip(self, everything: list[Tensor], rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        # Every step's path, over every parameter: no Python call for each of them.
        parameters = list(filter(_trains, everything))
        if not parameters or not _DENSE.issuperset(map(type, map(_grad, parameters))):
            return None
        key = tuple(map(id, parameters))
        probe = self._clips.get(key)
        if probe is None:
            self._clips.clear()
            probe = self._clips[key] = GradientProbe(parameters)
        gradients = probe.measure()
        if gradients is None:
            return None
        self._clipped = (key, gradients)
        limit = kwargs.get("max_norm", rest[0] if rest else None)
        plain = len(rest) <= 1 and set(kwargs) <= {"max_norm"} and isinstance(limit, int | float)
        if not plain or not gradients.alike or len(parameters) != len(everything):
            return None
        self._limit = float(limit)  # type: ignore[arg-type]
        if gradients.total.is_cuda:
            gradients.measured = torch.cuda.current_stream(gradients.total.device).record_event()
        clip_exact(gradients, self._limit)
        gradients.clipped = gradients.versions()
        return gradients.total
