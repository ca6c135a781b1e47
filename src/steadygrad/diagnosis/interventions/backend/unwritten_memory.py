"""Memory that a step reads and did not write: rows left in a buffer, a copy that is still queued, work that another
stream has not done yet, memory never filled.

Each change removes one of these and nothing else. A step that fails and is finite with one of them has its cause in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ....detect.tensors.foreign_objects import getattr, isinstance
from ....detect.tensors.torch_private import tree_leaves
from ...replay.replay_step import ReplayChange
from ...replay.replayable import Replayable
from ...trace.backward_mode import StaysInBackward
from ...trace.user_frames import UserFrame, current_stack

_WRITES = frozenset({"copy_", "__setitem__", "index_copy_", "index_put_", "scatter_", "masked_scatter_"})
_COPIES = frozenset({"to", "copy_", "cuda", "cpu"})
_UNFILLED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})


class MemoryChange(ReplayChange):
    """A change at calls of some functions, or of all where no names are given. `places` are the lines where something
    was changed, in their order."""

    names: frozenset[str] = frozenset()
    alters_values = False

    def __init__(self) -> None:
        self.places: dict[UserFrame, str] = {}
        self.owners: frozenset[str] = frozenset()

    def prepared(self, replayable: Replayable) -> None:
        self.owners = replayable.facts.owners

    @contextmanager
    def around(self) -> Iterator[None]:
        with _AtCalls(self):
            yield

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def saw(self, out: Any) -> None:
        """What a call that is not changed has returned."""

    def changed(self, what: str) -> None:
        frame = current_stack(owners=self.owners).innermost
        if frame is not None:
            self.places.setdefault(frame, what)


class _AtCalls(StaysInBackward):
    def __init__(self, change: MemoryChange) -> None:
        super().__init__()
        self.change = change

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not self.change.names or getattr(func, "__name__", "") in self.change.names:
            return self.change.call(func, args, kwargs)
        out = func(*args, **kwargs)
        self.change.saw(out)
        return out


class ClearStaleRows(MemoryChange):
    """NaN that a buffer holds from an earlier step is cleared before the step writes over a part of the buffer.

    Buffers that the step itself makes are left alone: what it does not write there it never meant to. The buffers are
    the user's, so their contents are restored.
    """

    names = _WRITES

    def __init__(self) -> None:
        super().__init__()
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def undo(self, replayable: Replayable) -> None:
        with torch.no_grad():
            for whole, contents in self._before.values():
                whole.copy_(contents)
        self._before.clear()

    def saw(self, out: Any) -> None:
        for item in tree_leaves(out):
            if isinstance(item, Tensor) and item.layout is torch.strided and item._base is None:
                self._own.add(item.untyped_storage().data_ptr())

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        target = args[0] if args else None
        if isinstance(target, Tensor) and target.is_floating_point() and target.layout is torch.strided:
            whole = target if target._base is None else target._base
            partial = whole is not target or func.__name__ != "copy_"
            if partial and not whole.requires_grad and whole.untyped_storage().data_ptr() not in self._own:
                self._clear(whole)
        return func(*args, **kwargs)

    def _clear(self, whole: Tensor) -> None:
        with torch.no_grad():
            stale = torch.isnan(whole)
            if bool(stale.any()):
                self._before.setdefault(whole.untyped_storage().data_ptr(), (whole, whole.clone()))
                whole.masked_fill_(stale, 0.0)
                self.changed(f"buffer {tuple(whole.shape)}")


class WaitForCopies(MemoryChange):
    """Copies between host and device that were queued are waited for."""

    names = _COPIES

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("non_blocking"):
            self.changed("a queued copy")
            return func(*args, **{**kwargs, "non_blocking": False})
        if func.__name__ == "copy_" and len(args) > 2 and args[2]:
            self.changed("a queued copy")
            return func(args[0], args[1], False, **kwargs)
        return func(*args, **kwargs)


class WaitForStreams(MemoryChange):
    """Before work is given to another stream than before, the device finishes what it has. Noted where the work comes
    back to the stream that it began on: there something is read that may not be there yet."""

    def __init__(self) -> None:
        super().__init__()
        self._first: Any = None
        self._last: Any = None

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            now = torch.cuda.current_stream()
            if self._first is None:
                self._first = self._last = now
            if now != self._last:
                torch.cuda.synchronize()
                if now == self._first:
                    self.changed("the result of another stream")
            self._last = now
        return func(*args, **kwargs)


class FillMemory(MemoryChange):
    """Memory that is allocated and not filled holds zeros."""

    names = _UNFILLED

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            self.changed(f"memory {tuple(out.shape)}")
            with torch.no_grad():
                out.zero_()
        return out
