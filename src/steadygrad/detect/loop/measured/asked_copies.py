"""Ask a copy of a data set, made as for a worker, so that nothing of the program's own is touched."""

from __future__ import annotations

import io
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TypeVar

import torch

from ...tensors.foreign_objects import getattr, hasattr, isinstance

MAX_BYTES = 1 << 24
"""A data set that is larger is not copied."""
_DEPTH = 3
_Answer = TypeVar("_Answer")


class _Bounded(io.BytesIO):
    """Takes no more than that: what attributes hold further down is not seen before it is copied."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(memoryview(data).cast("B")) > MAX_BYTES:
            raise ValueError("too large to be copied")
        return super().write(data)


def ask_copy(dataset: Any, question: Callable[[Callable[[], Any]], _Answer]) -> _Answer | None:
    """What a question gives that is put to copies of a data set; None where it cannot be copied or asked here. The
    question gets a function that makes a new copy. Random states are as before afterwards, and nothing is printed."""
    if size_of(dataset) > MAX_BYTES:
        return None
    state = random.getstate(), torch.get_rng_state(), _numpy_state()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
            held = _Bounded()
            pickle.dump(dataset, held)
            copied = held.getvalue()
            return question(lambda: pickle.loads(copied))
    except Exception:  # a data set that cannot be copied or asked here
        return None
    finally:
        _restore(state)


def size_of(dataset: Any) -> int:
    """About how many bytes a copy of it would have."""
    return sum(
        getattr(value, "nbytes", 0) if not isinstance(value, list | tuple | dict | str | bytes) else len(value)
        for _, value in attributes(dataset)
    )


def attributes(thing: Any, depth: int = _DEPTH, path: str = "dataset") -> Iterator[tuple[str, Any]]:
    """The attributes of the data set, of what it wraps and of its transforms."""
    if depth == 0:
        return
    items: Any = vars(thing).items() if hasattr(thing, "__dict__") else ()
    if isinstance(thing, list | tuple):
        items = ((str(place), item) for place, item in enumerate(thing[:16]))
    for name, value in items:
        yield f"{path}.{name}", value
        if hasattr(value, "__dict__") or isinstance(value, list | tuple):
            yield from attributes(value, depth - 1, f"{path}.{name}")


def _restore(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    if state[2] is not None:
        sys.modules["numpy"].random.set_state(state[2])


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None
