"""Whether the workers of a data loader draw the same random numbers: they get copies of a generator of the data set.

torch seeds its own, Python's and numpy's global generators in each worker. A generator that the data set, or a
transform of it, made for itself is copied with it, in the same state, into each worker and anew in every epoch.
"""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from ...tensors.foreign_objects import getattr, hasattr, isinstance
from ...tensors.nested_tensors import tensors_in
from .asked_copies import ask_copy, attributes

_SEEDING = frozenset({"seed", "manual_seed", "manual_seed_all", "random", "cuda"})
"""What is asked of a module to seed its generators, as in `numpy.random.seed`."""
_GENERATORS: dict[str, Callable[[Any, int], Any]] = {
    "torch": lambda torch, number: torch.manual_seed(number),
    "numpy": lambda numpy, number: numpy.random.seed(number),
    "random": lambda random, number: random.seed(number),
}


def same_draws(dataset: Any, num_workers: int, has_worker_init: bool) -> str:
    """How the workers draw the same numbers, as a sentence; nothing where they do not, or where it is not known.

    Two copies of the data set, made as for workers, are asked for the same sample, and one of them twice: if the copies
    agree and the second answer differs, the sample depends on a generator that every worker has in the same state.
    """
    if num_workers < 2 or has_worker_init or not (names := _own_generators(dataset)):
        return ""

    def drawn_alike(copy: Callable[[], Any]) -> bool:
        one, other = copy(), copy()
        first, again, elsewhere = one[0], one[0], other[0]
        return _same(first, elsewhere) and not _same(first, again)

    if ask_copy(dataset, drawn_alike):
        return f"each of {num_workers} workers has a copy of the generator {names[0]} in the same state"
    return ""


def seeded_alike(dataset: Any, num_workers: int, worker_init: Any) -> str:
    """How a function that is called in each worker gives all of them the same seed, as a sentence; nothing where it
    does not, or where the data set draws no numbers with what it seeds. The function is read and not called."""
    seeds = _seeds_given(worker_init) if num_workers > 1 else frozenset()
    if not seeds:
        return ""

    def drawn_alike(make: Callable[[], Any]) -> bool:
        samples = []
        for worker in range(2):
            copy = make()
            for name in _GENERATORS:
                _seed(name, 1 if name in seeds else 1000 + worker)
            samples += [copy[0], copy[0]]
        return _same(samples[0], samples[2]) and not _same(samples[0], samples[1])

    if ask_copy(dataset, drawn_alike):
        names = " and ".join(sorted(seeds))
        return f"worker_init_fn gives each of {num_workers} workers the same seed of {names}, in every epoch"
    return ""


def _seeds_given(function: Any) -> frozenset[str]:
    """The modules whose generators a function seeds without a use of the worker's number, where it does only that."""
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or code.co_argcount != 1 or code.co_freevars or code.co_cellvars:
        return frozenset()
    read = list(dis.get_instructions(code))
    used = {name for each in read for name in (each.argval if isinstance(each.argval, tuple) else (each.argval,))}
    names = {each.argval for each in read if each.opname == "LOAD_GLOBAL"}
    values = [known.get(name) for name in names]
    modules = {each.__name__ for each in values if isinstance(each, ModuleType)}
    others = [each for each in values if not isinstance(each, ModuleType)]
    only_seeds = {*code.co_names} - names <= _SEEDING and bool(modules) and modules <= _GENERATORS.keys()
    if code.co_varnames[0] in used or not only_seeds or any(type(each) is not int for each in others):
        return frozenset()
    return frozenset(modules)


def _seed(name: str, number: int) -> None:
    module = sys.modules.get(name)
    if module is not None:
        _GENERATORS[name](module, number)


def draws_at_random(dataset: Any, shape: Sequence[int]) -> str:
    """The generator it keeps, with which this data set changes samples of such a shape; nothing where it has none."""
    if not (names := _own_generators(dataset)):
        return ""

    def changes(make: Callable[[], Any]) -> bool:
        copy = make()
        first, again = copy[0], copy[0]
        return any(tuple(tensor.shape) == tuple(shape) for tensor in tensors_in(first)) and not _same(first, again)

    return names[0] if ask_copy(dataset, changes) else ""


def _own_generators(dataset: Any) -> list[str]:
    """The names of the generators that a data set keeps."""
    return [name for name, value in attributes(dataset) if _is_generator(value)]


def _is_generator(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, kinds)


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
