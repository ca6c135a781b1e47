"""Two instruments: one counts host reads, the other breaks a function of the package at its next call."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from scenario import Made, Result, Scenario
from torch.utils._python_dispatch import TorchDispatchMode

_READERS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__")


class _Scalars(TorchDispatchMode):
    """Counts `aten._local_scalar_dense` outside of the methods that are counted by name."""

    def __init__(self, count: dict[str, int]) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and not self._count["inside"]:
            self._count["reads"] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counting_reads(it: Made, result: Result) -> Iterator[None]:
    """`result.reads` has the host reads between each two draws of a batch."""
    count = {"reads": 0, "inside": 0}
    kept = {name: getattr(torch.Tensor, name) for name in _READERS}

    def counted(original: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            if not count["inside"]:
                count["reads"] += 1
            count["inside"] += 1
            try:
                return original(*args, **kwargs)
            finally:
                count["inside"] -= 1

        return read

    def drawn() -> None:
        result.reads.append(count["reads"])
        count["reads"] = 0

    it.data.on_draw = drawn
    for name, original in kept.items():
        setattr(torch.Tensor, name, counted(original))
    try:
        with _Scalars(count):
            yield
    finally:
        for name, original in kept.items():
            if name in vars(torch._C.TensorBase) or any(name in vars(base) for base in torch.Tensor.__mro__[1:]):
                with contextlib.suppress(AttributeError):
                    delattr(torch.Tensor, name)
            if getattr(torch.Tensor, name) is not original:
                setattr(torch.Tensor, name, original)


class Planted(Exception):
    """A fault of the package's own, made for a test."""


_BARRIERS = ("barrier",)
"""Files of the thing that catches faults: it cannot catch its own."""


def _ours(frame: FrameType | None) -> str | None:
    """The path of a function inside the package, or None if it is not ours."""
    if frame is None:
        return None
    path = frame.f_code.co_filename
    _, found, inside = path.rpartition("/steadygrad/")
    if not found or inside.startswith("testing/") or "/tests/" in path:
        return None
    return inside


def _in_diagnosis(frame: FrameType | None) -> bool:
    """Whether a diagnosis is under way in this frame: it may answer "not diagnosed" where one of its trials fails."""
    while frame is not None:
        if (_ours(frame) or "").startswith("diagnosis/"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def breaking(it: Made, result: Result, wish: str, *, after: int = 3) -> Iterator[None]:
    """With "list" notes every function of the package that another one of its functions calls, once `after` batches
    were drawn; with a name from that list raises at its next call, once."""
    seen: dict[str, None] = {}

    def profile(frame: FrameType, event: str, _arg: Any) -> None:
        if event != "call" or len(it.data.drawn) < after:
            return
        path = _ours(frame)
        if path is None or _ours(frame.f_back) is None or any(word in Path(path).name for word in _BARRIERS):
            return
        caller = Path(_ours(frame.f_back) or "").name
        if any(word in caller for word in _BARRIERS) or frame.f_code.co_name.startswith("<"):
            return
        name = f"{path}:{frame.f_code.co_name}"
        if wish == "list":
            seen.setdefault(name)
        elif name == wish:
            result.struck, result.examining = True, _in_diagnosis(frame)
            raise Planted(name)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        result.called = list(seen)


def spread(names: Sequence[str], count: int) -> list[str]:
    """So many of these names, evenly over the list, or all of them."""
    if count >= len(names):
        return list(names)
    return [names[place * len(names) // count] for place in range(count)]


def sampled(scenario: Scenario, run: Callable[[Scenario], Result]) -> list[Result]:
    """For a scenario that breaks "sample:N": N trainings, each with another function broken. `called` says which.

    With "sample:N:refused" of the functions that only a training with a fault calls.
    """
    _, count, *rest = scenario.breaks.split(":")
    names = run(scenario.but(breaks="list")).called
    if rest:
        healthy = set(run(scenario.but(breaks="list", faults={})).called)
        names = [name for name in names if name not in healthy]
    found = []
    for name in spread(names, int(count)):
        result = run(scenario.but(breaks=name))
        result.called = [name]
        found.append(result)
    return found


@contextlib.contextmanager
def instrumented(it: Made, result: Result) -> Iterator[None]:
    """The instruments that the scenario asks for."""
    with contextlib.ExitStack() as stack:
        if it.scenario.count_reads:
            stack.enter_context(counting_reads(it, result))
        if it.scenario.breaks:
            stack.enter_context(breaking(it, result, it.scenario.breaks))
        yield
