"""Every global random state a training step may draw from, taken and restored.

torch's CPU generator, every initialised CUDA device's, python's `random` and numpy's legacy global. A generator the
user made is registered with the guard as extra state.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import random
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...detect.tensors.torch_private import (
    innermost_transform,
    num_dispatch_modes,
    num_function_modes,
    without_dispatch_modes,
    without_torch_function,
)


@dataclass(frozen=True, slots=True)
class RngState:
    """All global random states at one moment."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]
    python: tuple[Any, ...]
    numpy: dict[str, Any] | None


class _NumpyRng:
    """numpy's global state. Taking it costs 40 microseconds, so an unchanged one is recognised by its raw bytes.

    The bytes do not cover the cached second Gaussian; while one is cached the state is always taken afresh.
    """

    MT19937_BYTES = 2500

    def __init__(self) -> None:
        self._bytes = b""
        self._state: dict[str, Any] | None = None
        self._recognised = False
        """Whether the state that was taken last can be recognised by its bytes."""
        self._generator: Any = None
        self._memory: Any = None

    def take(self) -> dict[str, Any] | None:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        raw = self._raw(numpy.random)
        if self._recognised and raw == self._bytes:
            return self._state
        state: dict[str, Any] = numpy.random.get_state(legacy=False)
        self._bytes, self._state = raw, state
        self._recognised = bool(raw) and not state.get("has_gauss", 1)
        return state

    def _raw(self, random: Any) -> bytes:
        generator = random.get_bit_generator() if hasattr(random, "get_bit_generator") else None
        if generator is not self._generator:
            self._generator, self._memory = generator, None
            if generator is not None and type(generator).__name__ == "MT19937":
                self._memory = _memory(generator.ctypes.state_address, self.MT19937_BYTES)
        return b"" if self._memory is None else self._memory.raw


class _PythonRng:
    """python's global state. Taking it makes a tuple of 625 numbers, so an unchanged one is recognised by its raw
    bytes. Where they lie is CPython's own business: it is checked once, and where it is not as expected the state is
    always taken afresh."""

    RAW = struct.Struct("i624I")

    def __init__(self) -> None:
        self._bytes = b""
        self._state: tuple[Any, ...] | None = None
        self._known: Any = None
        self._memory: Any = None

    def take(self) -> tuple[Any, ...]:
        generator: Any = getattr(random.getstate, "__self__", None)
        raw = self._memory.raw if generator is self._known is not None else b""
        if raw and raw == self._bytes and self._state is not None and generator.gauss_next is self._state[2]:
            return self._state
        state = random.getstate()
        if self._known is None:
            self._known = generator if self._is_as_expected(generator, state) else False
            raw = self._memory.raw if self._known is generator else b""
        self._bytes, self._state = raw, state
        return state

    def _is_as_expected(self, generator: Any, state: tuple[Any, ...]) -> bool:
        if sys.implementation.name != "cpython" or type(generator) is not random.Random:
            return False
        if random.Random.__basicsize__ < object.__basicsize__ + self.RAW.size:
            return False
        self._memory = _memory(id(generator) + object.__basicsize__, self.RAW.size)
        index, *words = self.RAW.unpack(self._memory.raw)
        return bool((*words, index) == state[1])


def _memory(address: int, size: int) -> Any:
    """A view of so many bytes there, without a copy."""
    return (ctypes.c_char * size).from_address(address)


_numpy = _NumpyRng()
_python = _PythonRng()


class _Page:
    """A piece of memory for many states of torch's CPU generator. Threads may share it."""

    NUMBER = 128

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.free = iter(range(self.NUMBER))
        self.kept: list[weakref.ref[torch.Tensor]] = []

    @property
    def unused(self) -> bool:
        return len(self.kept) == self.NUMBER and all(reference() is None for reference in self.kept)


class _Pages:
    """Where the states of torch's CPU generator are kept: many in one page, apart from the heap.

    They are kept for hundreds of steps. Each in a block of the heap, between the blocks of large batches, would keep
    what those leave from being used again for the next batch: the program would grow by a batch now and then."""

    def __init__(self) -> None:
        self._all: list[_Page] = []
        self._page: _Page | None = None

    def keep(self, state: torch.Tensor) -> torch.Tensor:
        """A copy of a state. A page is used again when no state in it is needed any more."""
        page, number = self._page, None
        while page is None or page.memory.shape[1] != state.numel() or (number := next(page.free, None)) is None:
            page = self._page = self._next_page(state.numel())
        place = page.memory[number]
        ctypes.memmove(place.data_ptr(), state.data_ptr(), state.numel())
        page.kept.append(weakref.ref(place))
        return place

    def _next_page(self, size: int) -> _Page:
        page: _Page | None = None
        for unused in [each for each in self._all if each.unused]:
            with contextlib.suppress(ValueError):  # another thread has it
                self._all.remove(unused)
                page = _Page(unused.memory) if unused.memory.shape[1] == size else page
        if page is None:
            # Of this process alone: a forked child writes its own states.
            flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
            memory = mmap.mmap(-1, _Page.NUMBER * size, **flags)
            page = _Page(torch.frombuffer(memory, dtype=torch.uint8).view(_Page.NUMBER, size))
        self._all.append(page)
        return page


_pages = _Pages()


class _TorchRng:
    """The state of torch's CPU generator. Taking it makes a tensor of 5 kB, so an unchanged one is recognised by its
    raw bytes. Where they lie is torch's own business: it is looked for once, and where it is not found those of the
    tensor are compared."""

    WORDS, HEAD, TAIL = 624, 24, 28
    """Numbers of the state, and the bytes before (seed, place) and behind them (a normal number that is left over)."""
    SEARCHED = 128

    def __init__(self) -> None:
        self._last: tuple[bytes, torch.Tensor] = (b"", torch.empty(0))
        self._memory: Any = None
        self._looked = False

    def take(self) -> torch.Tensor:
        raw, last = self._memory.raw if self._memory is not None else b"", self._last
        if raw and raw == last[0]:
            return last[1]
        state = torch.default_generator.get_state()
        # Where a mode or a transform of the program sees or replaces every operation, there is none of ours.
        if num_dispatch_modes() or num_function_modes() or innermost_transform() or torch.is_inference_mode_enabled():
            return state
        if not self._looked:
            self._look()
        if self._memory is None:
            raw = ctypes.string_at(state.data_ptr(), state.numel())
        elif not raw or self._memory.raw != raw:
            return _pages.keep(state)  # found only now, or another thread has drawn meanwhile
        if raw != last[0]:
            last = self._last = (raw, _pages.keep(state))
        return last[1]

    def _look(self) -> None:
        """Find the raw bytes of the generator, and try on another one that they change with whatever is drawn."""
        self._looked = True
        with contextlib.suppress(AttributeError, RuntimeError, struct.error):
            trial = torch.Generator()
            found, memory, start = self._found(torch.default_generator), self._found(trial), trial.get_state()
            moves: list[Callable[[], Any]] = [
                functools.partial(draw, 1, generator=trial) for draw in 2 * (torch.rand, torch.randn, torch.randn)
            ]
            moves += [lambda: trial.manual_seed(7), lambda: trial.set_state(start)]
            for move in moves:
                before = memory.raw
                move()
                if memory.raw == before:
                    return
            self._memory = found

    def _found(self, generator: torch.Generator) -> Any:
        state = generator.get_state()
        words = struct.unpack_from(f"={self.WORDS}Q", ctypes.string_at(state.data_ptr(), state.numel()), self.HEAD)
        address: int = generator._cdata  # type: ignore[attr-defined]
        raw = struct.pack(f"={self.WORDS}I", *words)
        place = ctypes.string_at(address, self.SEARCHED + len(raw)).find(raw)
        if place < self.HEAD or place % 4:
            raise AttributeError
        return _memory(address + place - self.HEAD, self.HEAD + len(raw) + self.TAIL)


_torch = _TorchRng()
_cuda: dict[int, tuple[tuple[int, int], torch.Tensor]] = {}


def _cuda_state(generator: torch.Generator) -> torch.Tensor:
    """A CUDA generator's state is a seed and an offset: while they are the same, so is the tensor that holds them."""
    now = (generator.initial_seed(), generator.get_offset())
    known = _cuda.get(id(generator))
    if known is None or known[0] != now:
        known = _cuda[id(generator)] = (now, generator.get_state())
    return known[1]


_last: RngState | None = None


def take_rng() -> RngState:
    """The global random states now; the same object while nothing is drawn. Does not sync: CUDA generators keep seed
    and offset on the host."""
    global _last
    cuda: tuple[torch.Tensor, ...] = ()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda = tuple(map(_cuda_state, torch.cuda.default_generators))
    if (last := _last) is not None and _are_still(last):
        cpu, python, numpy = last.cpu, last.python, last.numpy
    else:
        cpu, python, numpy = _torch.take(), _python.take(), _numpy.take()
    if last is None or not (last.cpu is cpu and last.python is python and last.numpy is numpy) or (
        (cuda or last.cuda) and list(map(id, last.cuda)) != list(map(id, cuda))
    ):  # fmt: skip
        last = _last = RngState(cpu, cuda, python, numpy)
    return last


def _are_still(last: RngState) -> bool:
    """Whether the host's generators are seen by their bytes to have these states still: what each `take` looks at,
    without a call for each."""
    known = _torch
    if known._memory is None or known._last[1] is not last.cpu or known._memory.raw != known._last[0]:
        return False
    generator: Any = getattr(random.getstate, "__self__", None)
    if not generator or generator is not _python._known or _python._state is not last.python:
        return False
    if generator.gauss_next is not last.python[2] or _python._memory.raw != _python._bytes:
        return False
    if (numpy := sys.modules.get("numpy")) is None or last.numpy is None:
        return numpy is None and last.numpy is None
    if _numpy._state is not last.numpy or not _numpy._recognised or _numpy._memory is None:
        return False
    same: bool = numpy.random.get_bit_generator() is _numpy._generator and _numpy._memory.raw == _numpy._bytes
    return same


def put_rng(state: RngState) -> None:
    """Put all global random states back."""
    cpu = state.cpu
    if cpu.storage_offset():  # torch reads elsewhere if it is given a part of a larger tensor
        with without_dispatch_modes(), without_torch_function():
            cpu = cpu.clone()
    torch.default_generator.set_state(cpu)
    for generator, value in zip(torch.cuda.default_generators, state.cuda, strict=False):
        generator.set_state(value)
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy"].random.set_state(state.numpy)


def rewound(now: RngState, segments: Sequence[tuple[RngState, RngState | None]]) -> RngState:
    """The random states from before these stretches of training code, as far as nothing else has drawn since.

    `segments` are (before, after) of consecutive stretches; after None: that one has not ended. Each generator is
    rewound stretch by stretch from the end, and only while its state is exactly what the stretch left: where the
    user's own loop has drawn in between (the next batch, say), its numbers must not come again.
    """
    generators = _generators(now)
    for place in range(len(generators)):
        for before, after in reversed(segments):
            left = _generators(after) if after is not None else None
            if left is not None and (place >= len(left) or not _same(left[place], generators[place])):
                break
            was = _generators(before)
            if place >= len(was):
                break
            generators[place] = was[place]
    cpu, python, numpy, *cuda = generators
    return RngState(cpu, tuple(cuda), python, numpy)


def same_rng(one: RngState, other: RngState) -> bool:
    """Whether all random states are the same."""
    mine, others = _generators(one), _generators(other)
    return len(mine) == len(others) and all(map(_same, mine, others))


class Asides:
    """What forwards without gradients drew before the first forward of a window: the value of the next state by a model
    with dropout, say. They belong to the window where each window has as many; else it is not known."""

    _MOST = 64

    def __init__(self) -> None:
        self._since: list[tuple[RngState, RngState | None]] = []
        self._counts = [0, 0]
        self.of_window: list[tuple[RngState, RngState | None]] = []
        """The stretches before the window under way."""
        self.usual = True
        """Whether the windows before had as many."""

    def began(self) -> None:
        self._since.append((take_rng(), None))
        del self._since[: -self._MOST]

    def ended(self) -> None:
        if self._since:
            before, _ = self._since.pop()
            if not same_rng(before, now := take_rng()):
                self._since.append((before, now))

    def window_begins(self) -> None:
        self.of_window, self._since = self._since, []
        count = len(self.of_window)
        self.usual = not count or (self._counts == [count, count] and count < self._MOST)
        self._counts = [self._counts[1], count]


def _generators(state: RngState) -> list[Any]:
    return [state.cpu, state.python, state.numpy, *state.cuda]


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if one is None or other is None:
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        plain = {key: value for key, value in one.items() if key != "state"}
        if plain != {key: value for key, value in other.items() if key != "state"}:
            return False
        return all(bool((value == other["state"][key]).all()) if hasattr(value, "all") else value == other["state"][key]
                   for key, value in one["state"].items())  # fmt: skip
    return bool(one == other)


def rng_to_plain(state: RngState) -> dict[str, Any]:
    """As nested lists, numbers and tensors, for a checkpoint that needs no pickle."""
    numpy_state = None
    if state.numpy is not None:
        numpy_state = {**state.numpy, "state": {k: _listed(v) for k, v in state.numpy["state"].items()}}
    return {"cpu": state.cpu.clone(), "cuda": list(state.cuda), "python": _listed(state.python), "numpy": numpy_state}


def rng_from_plain(data: dict[str, Any]) -> RngState:
    """The inverse of `rng_to_plain`."""
    version, internal, gauss = data["python"]
    numpy_state = data["numpy"]
    if numpy_state is not None and "numpy" in sys.modules:
        array = sys.modules["numpy"].asarray(numpy_state["state"]["key"], dtype="uint32")
        numpy_state = {**numpy_state, "state": {**numpy_state["state"], "key": array}}
    return RngState(data["cpu"], tuple(data["cuda"]), (version, tuple(internal), gauss), numpy_state)


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_listed(item) for item in value]
    return value
