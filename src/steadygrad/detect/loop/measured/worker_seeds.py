"""Whether the workers of a data loader draw the same random numbers: they get copies of a generator of the data set.

torch seeds its own, Python's and numpy's global generators in each worker. A generator that the data set, or a
transform of it, made for itself is copied with it, in the same state, into each worker and anew in every epoch.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...tensors.nested_tensors import tensors_in

_MAX_BYTES = 1 << 24
_DEPTH = 3


def same_draws(dataset: Any, num_workers: int, has_worker_init: bool) -> str:
    """How the workers draw the same numbers, as a sentence; nothing where they do not, or where it is not known.

    Two copies of the data set, made as for workers, are asked for the same sample, and one of them twice: if the copies
    agree and the second answer differs, the sample depends on a generator that every worker has in the same state.
    """
    if num_workers < 2 or has_worker_init:
        return ""
    names = _own_generators(dataset)
    if not names:
        return ""
    state = random.getstate(), torch.get_rng_state(), _numpy_state()
    try:
        copied = pickle.dumps(dataset)
        if len(copied) > _MAX_BYTES:
            return ""
        one, other = pickle.loads(copied), pickle.loads(copied)
        first, again, elsewhere = one[0], one[0], other[0]
        drawn_alike = _same(first, elsewhere) and not _same(first, again)
    except Exception:  # a data set that cannot be copied or asked here
        return ""
    finally:
        _restore(state)
    if drawn_alike:
        return f"each of {num_workers} workers has a copy of the generator {names[0]} in the same state"
    return ""


def draws_at_random(dataset: Any, shape: Sequence[int]) -> str:
    """The generator it keeps, with which this data set changes samples of such a shape; nothing where it has none."""
    names = _own_generators(dataset)
    if not names:
        return ""
    state = random.getstate(), torch.get_rng_state(), _numpy_state()
    try:
        copied = pickle.dumps(dataset)
        if len(copied) > _MAX_BYTES:
            return ""
        copy = pickle.loads(copied)
        first, again = copy[0], copy[0]
        alike = any(tuple(tensor.shape) == tuple(shape) for tensor in tensors_in(first))
        return names[0] if alike and not _same(first, again) else ""
    except Exception:  # a data set that cannot be copied or asked here
        return ""
    finally:
        _restore(state)


def _own_generators(dataset: Any) -> list[str]:
    """The names of the generators that a data set keeps; none of one that is too large to be copied."""
    names, size = [], 0
    for name, value in _attributes(dataset, _DEPTH):
        if _is_generator(value):
            names.append(name)
        size += getattr(value, "nbytes", 0) if not isinstance(value, list | tuple | dict | str | bytes) else len(value)
    return names if size <= _MAX_BYTES else []


def _restore(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    if state[2] is not None:
        sys.modules["numpy"].random.set_state(state[2])


def _attributes(thing: Any, depth: int, path: str = "dataset") -> Iterator[tuple[str, Any]]:
    """The attributes of the data set, of what it wraps and of its transforms."""
    if depth == 0:
        return
    items: Any = vars(thing).items() if hasattr(thing, "__dict__") else ()
    if isinstance(thing, list | tuple):
        items = ((str(place), item) for place, item in enumerate(thing[:16]))
    for name, value in items:
        yield f"{path}.{name}", value
        if hasattr(value, "__dict__") or isinstance(value, list | tuple):
            yield from _attributes(value, depth - 1, f"{path}.{name}")


def _is_generator(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, kinds)


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None


def _same(one: Any, other: Any) -> bool:
    """Whether two samples are the same, bit for bit, as far as they are made of tensors, arrays and numbers."""
    first, second = list(_values(one)), list(_values(other))
    return len(first) == len(second) > 0 and all(map(_equal, first, second))


def _values(sample: Any) -> Iterator[Any]:
    tensors = tensors_in(sample)
    if tensors:
        yield from tensors
    elif isinstance(sample, dict):
        yield from sample.values()
    elif isinstance(sample, list | tuple):
        yield from sample
    else:
        yield sample


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    answer = one == other
    return bool(answer.all()) if hasattr(answer, "all") else bool(answer)
