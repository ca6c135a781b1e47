"""The line of a data set or a collate function that made a batch non-finite, by making the batch once more.

torch's operations are seen by a dispatch mode; numpy calls us at the operation that makes a NaN or an infinity out of
finite numbers. What only passes a bad value on is neither, so a file that holds a NaN has no such line.
"""

from __future__ import annotations

import linecache
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ...detect.loop.program_frames import NOT_THEIRS
from ...detect.tensors.foreign_objects import getattr, is_tensor, isinstance
from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.torch_private import TorchDispatchMode
from ...engine.state.rng import put_rng, take_rng

_MAX_DEPTH = 40


@dataclass(frozen=True, slots=True)
class MadeBad:
    """Where something non-finite was made out of finite numbers: torch's operation, and the program's lines, innermost
    first."""

    op: str | None
    stack: tuple[str, ...]

    @property
    def code_line(self) -> str:
        file, _, line = self.stack[0].rpartition(":")
        return linecache.getline(file, int(line)).strip()


@dataclass(frozen=True, slots=True)
class LoaderSource:
    """How an iterator of a DataLoader makes a batch. Keeps nothing of it alive."""

    iterator: weakref.ref[Any]
    indices: tuple[Any, ...]

    @property
    def parts(self) -> tuple[Any, Any] | None:
        """The data set and the collate function; None where they are gone, or are of another kind of loader.

        None with workers, too: what a data set opens or loads at its first sample is not meant for this process.
        """
        iterator = self.iterator()
        if getattr(iterator, "_num_workers", 0):
            return None
        dataset, collate = getattr(iterator, "_dataset", None), getattr(iterator, "_collate_fn", None)
        return None if dataset is None or collate is None or not self.indices else (dataset, collate)

    def again(self) -> Any:
        """The batch, made once more, as torch's fetcher makes it."""
        iterator, parts = self.iterator(), self.parts
        assert parts is not None
        dataset, collate = parts
        if not getattr(iterator, "_auto_collation", True):
            return collate(dataset[self.indices[0]])
        fetch = getattr(dataset, "__getitems__", None)
        return collate(fetch(list(self.indices)) if callable(fetch) else [dataset[index] for index in self.indices])


def origin_in_loader(
    source: LoaderSource, supervised: Callable[[Sequence[Any]], AbstractContextManager[Any]]
) -> MadeBad | None:
    """Where making the batch again makes it non-finite; see `origin_in`."""
    return origin_in(source.again, source.parts, supervised) if source.parts is not None else None


def origin_in(
    make: Callable[[], Any], parts: Sequence[Any], supervised: Callable[[Sequence[Any]], AbstractContextManager[Any]]
) -> MadeBad | None:
    """Make something again of these parts, under `supervised(parts)`, which raises where that would have an effect.
    None where it comes out finite, or several lines make something bad, of which one may be mended afterwards."""
    rng, seen = take_rng(), _Seen()
    try:
        with supervised(parts), _errors_of_numpy(seen), seen:
            made = make()
    finally:
        put_rng(rng)
    return seen.places[0] if len({place.stack[0] for place in seen.places}) == 1 and _is_bad(made) else None


def _errors_of_numpy(seen: _Seen) -> AbstractContextManager[Any]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return nullcontext()
    errors: AbstractContextManager[Any] = numpy.errstate(divide="call", invalid="call", over="call", call=seen.numpy)
    return errors


def _is_bad(batch: Any) -> bool:
    if isinstance(batch, float):
        return not math.isfinite(batch)
    floats = [tensor for tensor in tensors_in(batch) if tensor.is_floating_point() and tensor.device.type == "cpu"]
    return any(not bool(torch.isfinite(tensor).all()) for tensor in floats)


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that make something non-finite out of finite numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: list[MadeBad] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        if not name.startswith(("empty", "new_empty")) and _holds_bad(result) and not _holds_bad((args, kwargs)):
            self._note(name, sys._getframe(1))
        return result

    def numpy(self, _error: str, _flag: int) -> None:
        """An operation of numpy, whose name is not told: it goes on afterwards as it would have."""
        self._note(None, sys._getframe(1))

    def _note(self, op: str | None, frame: FrameType | None) -> None:
        stack = []
        for _ in range(_MAX_DEPTH):
            if frame is None or frame.f_code.co_filename == __file__:
                break
            name = frame.f_code.co_filename
            if not name.startswith(NOT_THEIRS) and "site-packages" not in name:
                stack.append(f"{name}:{frame.f_lineno}")
            frame = frame.f_back
        if stack:
            self.places.append(MadeBad(op, tuple(stack)))


def _holds_bad(values: Any) -> bool:
    return any(
        is_tensor(tensor) and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
        for tensor in tensors_in(values)
    )
