"""The user's line after which a piece of memory holds a bad value: where a kernel was launched that torch does not see.

The memory is made by an operation that is seen (`torch.empty_like`), and written by a Triton kernel, a CUDA extension
or numpy. So from that operation on the memory is read after each of the user's lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import has_values
from ...detect.tensors.torch_private import without_dispatch_modes, without_torch_function
from .trace_log import OpRecord
from .user_frames import Stack, current_stack, is_of_program

MAX_LINES = 2000
"""Lines after which the search is given up: each of them reads the device."""


class WrittenLine:
    """Watches one operation and the memory it makes; `stack` is where that memory turned bad. Only for a forward pass.

    A debugger, a profiler of lines or a measurement of coverage is left alone: then nothing is searched.
    """

    def __init__(self, owners: frozenset[str]) -> None:
        self.stack: Stack | None = None
        self.bad_leading: tuple[bool, ...] = ()
        """For each index of dimension 0 of that memory: does it hold a bad value?"""
        self._owners = owners
        self._memory: Tensor | None = None
        self._last: dict[FrameType, int] = {}
        self._lines = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the replay."""
        try:
            yield
        finally:
            self._end()

    def watcher(self, record: OpRecord, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Called by the tracer before the operation (`out` is None) and after it."""
        made = out[0] if isinstance(out, tuple | list) and out else out
        if not isinstance(made, Tensor) or not has_values(made) or sys.gettrace() is not None:
            return
        if record.op.startswith(("empty", "new_empty")) and made.is_floating_point():
            made.zero_()  # whatever lay there before may look like a bad value
        self._memory = made.detach()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_of_program(frame.f_code.co_filename):
            frame = frame.f_back
        while frame is not None and is_of_program(frame.f_code.co_filename):
            self._last[frame], frame.f_trace = frame.f_lineno, self._local
            frame = frame.f_back
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if not is_of_program(frame.f_code.co_filename):
            return None
        self._last[frame] = frame.f_lineno
        return self._local

    def _local(self, frame: FrameType, event: str, _: Any) -> Any:
        if self._memory is None:
            return None  # the search has ended, in another thread
        if event not in ("line", "return"):
            return self._local
        self._lines += 1
        if self._is_bad():
            place = self._last.get(frame, frame.f_lineno)
            frames = current_stack(owners=self._owners).frames
            self.stack = Stack((replace(frames[0], line=place), *frames[1:])) if frames else None
        if self.stack is not None or self._lines > MAX_LINES:
            self._end()
            return None
        self._last[frame] = frame.f_lineno
        return self._local

    def _is_bad(self) -> bool:
        memory = self._memory
        if memory is None:
            return False
        with without_torch_function(), without_dispatch_modes(), torch.no_grad():
            bad = ~torch.isfinite(memory)
            if not bool(bad.any()):
                return False
            self.bad_leading = tuple(bad.reshape(len(memory), -1).any(1).tolist()) if memory.dim() else ()
        return True

    def _end(self) -> None:
        if sys.gettrace() == self._called:  # what another thread is traced by is not ours
            sys.settrace(None)
        for frame in self._last:
            frame.f_trace = None
        self._memory = None
        self._last.clear()
