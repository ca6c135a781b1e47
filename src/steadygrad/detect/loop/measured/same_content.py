"""What the first batches have in common: rows that are drawn again although others come, rows of a batch that are all
one memory, noise that is always the same.

Looks at what the model is given and at the variables of the functions that call it, in host memory, at the first
updates. Copies of a few tensors are kept from one update to the next, as long as there is a suspicion.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ...tensors.foreign_objects import getattr, is_tensor, isinstance
from ...tensors.nested_tensors import tensors_in
from ...tensors.readable_tensors import describable
from ..program_frames import frames_of_program, variables_of
from .repeated_draws import RepeatedDraws

UPDATES, _UNTIL = 24, 200
_MAX_OTHERS = 256
"""Calls in a row without a batch of numbers after which there will be none."""
_MAX_NUMEL, _MAX_ENTRIES, _MAX_OBJECTS = 1 << 18, 4096, 256
_SAME = 4
"""Updates with the same rows after which the program's lists are looked at."""
_GREW = 4
"""Updates in a row before which the list has grown."""
_NOISY = 3
_MIN_ROWS, _MIN_WIDTH, _MIN_DRAWN = 4, 4, 64
_CHANCE, _NO_CHANCE = 4.0, 8.0
"""Standard deviations that chance may make, and that it does not."""


class SameContent:
    """Called with what the model is given, at each of the first updates until that is a batch."""

    def __init__(self) -> None:
        self.rows, self.noise, self.draws = SameRows(), SameNoise(), RepeatedDraws()
        self.memory = SameMemory()
        self._updates = self._others = 0

    @property
    def done(self) -> bool:
        return self._updates >= (UPDATES if self.draws.done else _UNTIL)

    def called(self, arguments: Any) -> bool:
        """Whether it was a batch: a program may ask its model for one answer before."""
        given = next((t for t in tensors_in(arguments) if t.dim() > 1 and t.is_floating_point()), None)
        if given is None:
            self._others += 1
            self._updates = self._updates if self._others < _MAX_OTHERS else _UNTIL
            return False
        self._updates, self._others = self._updates + 1, 0
        if not describable(given) or given.device.type != "cpu" or not 0 < given.numel() <= _MAX_NUMEL:
            self._updates = _UNTIL
            return True
        if self._updates <= UPDATES:
            self.rows.called(given.detach())
            self.memory.called(given.detach(), arguments)
        if not self.noise.done:
            self.noise.called(given.detach())
        if not self.draws.done:
            self.draws.called(given)
        return True


class SameRows:
    """Whether the same rows are drawn at every update from a list that grows all the time."""

    def __init__(self) -> None:
        self._last: Tensor | None = None
        self._times = self._grew = 0
        self._lists: dict[tuple[str, int], int] = {}
        self.found = ""
        """How, as a sentence; or nothing."""

    def called(self, given: Tensor) -> None:
        if self._last is None or self._last.shape != given.shape or not torch.equal(self._last, given):
            self._last, self._times, self._grew, self._lists = given.clone(), 1, 0, {}
            return
        self._times += 1
        if self._times < _SAME or self.found or len(given) < 2:
            return
        lists = {key: len(each) for key, each in _growing_lists() if _holds(each, given)}
        grown = {key: size for key, size in lists.items() if size > self._lists.get(key, size)}
        self._grew, self._lists = (self._grew + 1 if grown else 0), lists
        if self._grew >= _GREW:
            (name, _), size = next(iter(grown.items()))
            self.found = (
                f"the same {len(given)} samples were drawn at {self._times} updates in a row from {name}, "
                f"which grows all the time and has {size} by now"
            )


class SameMemory:
    """Whether all rows of each batch are one array, to which all entries of a list of the program refer."""

    def __init__(self) -> None:
        self._times = 0
        self.found = ""
        """How, as a sentence; or nothing."""

    def called(self, given: Tensor, arguments: Any) -> None:
        alike = len(given) >= _MIN_ROWS and given[0].numel() > 1 and _one_row(given)
        others = [t for t in tensors_in(arguments) if t.dim() > 1 and len(t) > 1 and describable(t)] if alike else []
        self._times = self._times + 1 if alike and all(map(_one_row, others)) else 0
        if self._times < _SAME or self.found:
            return
        for (name, _), entries in _growing_lists():
            shared = _shared_by(list(entries)) if len(given) < len(entries) <= _MAX_ENTRIES else None
            if shared is not None and shared.shape == given.shape[1:] and torch.equal(shared.to(given), given[0]):
                self.found = (
                    f"all rows of {self._times} batches in a row are the same: the {len(entries)} entries of "
                    f"{name} refer to one array, and not each to its own"
                )
                return


def _one_row(rows: Tensor) -> bool:
    return torch.equal(rows[0], rows[1]) and torch.equal(rows, rows[:1].expand_as(rows))


def _shared_by(entries: list[Any]) -> Tensor | None:
    """An array or tensor that is the same object in every entry, where the entries are not."""
    if len({id(entry) for entry in entries}) < len(entries):
        return None
    for part in _parts(entries[0]):
        if all(any(part is other for other in _parts(entry)) for entry in entries):
            return torch.as_tensor(part).detach()
    return None


class SameNoise:
    """Whether what is mixed into the inputs is the same at every update, though the inputs are others."""

    def __init__(self) -> None:
        self._last: dict[str, Tensor] = {}
        self._others: dict[str, list[Tensor]] = {}
        self._times = 0
        self.done = False
        self.found = ""
        """How, as a sentence; or nothing."""

    def called(self, given: Tensor) -> None:
        last = self._last
        beside = {} if len(given) < _MIN_ROWS or given[0].numel() < _MIN_WIDTH else _of_same_shape(given)
        self._last = {name: tensor.clone() for name, tensor in beside.items()}
        if not last and len(beside) > 1:
            return
        same = [name for name in beside if name in last and torch.equal(beside[name], last[name])]
        others = [name for name in beside if name in last and name not in same]
        mixed = next(((n, o) for n in same for o in others if _is_mixture(given, beside[o], beside[n])), None)
        self._times += 1
        self.done = mixed is None or self._times >= _NOISY
        for name in others:
            self._others.setdefault(name, []).append(beside[name].reshape(len(given), -1).double())
        # Where both look drawn, the one that is always the same may be the data.
        if mixed is not None and self.done and not _is_white(torch.cat(self._others[mixed[1]]), _NO_CHANCE):
            self.found = (
                f"what the model is given is {mixed[1]!r} mixed with {mixed[0]!r}, and {mixed[0]!r} was the same, row "
                f"for row, at {self._times + 1} updates in a row while {mixed[1]!r} was not"
            )
        if self.done:
            self._last, self._others = {}, {}


def _of_same_shape(given: Tensor) -> dict[str, Tensor]:
    """Other tensors of the shape of a batch, in variables of the program or in a batch there."""
    found: dict[str, Tensor] = {}
    for frame in frames_of_program():
        for name, value in list(variables_of(frame).items())[:_MAX_OBJECTS]:
            entries: Any = value.items() if isinstance(value, Mapping) and len(value) <= 64 else ((name, value),)
            if isinstance(value, list | tuple) and len(value) <= 16:
                entries = ((f"{name}[{place}]", each) for place, each in enumerate(value))
            for key, tensor in entries:
                if is_tensor(tensor) and _is_like(tensor, given) and len(found) < 8:
                    found.setdefault(str(key), tensor.detach())
    return found


def _is_like(tensor: Tensor, given: Tensor) -> bool:
    if not describable(tensor) or tensor.device != given.device:  # a nested one has no shape
        return False
    return tensor.dtype is given.dtype and tensor.shape == given.shape and tensor.data_ptr() != given.data_ptr()


def _is_mixture(given: Tensor, clean: Tensor, noise: Tensor) -> bool:
    """Whether each row of what is given is a multiple of the clean one and a multiple of the noise, added."""
    if given.dtype not in (torch.float32, torch.float64):
        return False
    x, c, n = (tensor.reshape(len(tensor), -1).double() for tensor in (given, clean, noise))
    if not bool(torch.isfinite(torch.cat([x, c, n])).all()) or not _is_white(n):
        return False
    cc, cn, nn_, cx, nx = (c * c).sum(1), (c * n).sum(1), (n * n).sum(1), (c * x).sum(1), (n * x).sum(1)
    det = cc * nn_ - cn * cn
    known = det > 1e-6 * cc * nn_
    of_clean, of_noise = (cx * nn_ - nx * cn) / det, (nx * cc - cx * cn) / det
    rest = (x - of_clean[:, None] * c - of_noise[:, None] * n).norm(dim=1)
    size = x.norm(dim=1)
    exact = rest[known] <= 1e-5 * size[known]
    both = (of_noise.abs() * nn_.sqrt() > 1e-3 * size) & (of_clean.abs() * cc.sqrt() > 1e-3 * size) & known
    return int(known.sum()) >= _MIN_ROWS and bool(exact.all()) and 2 * int(both.sum()) >= len(x)


def _is_white(rows: Tensor, chance: float = _CHANCE) -> bool:
    """Whether rows look drawn: no mean to speak of, and neighbours that say nothing of each other, along a row and
    between rows. A code of positions, a level of each station or a season is not like that."""
    z = (rows - rows.mean()) / rows.std()
    if rows.numel() < _MIN_DRAWN or not bool(torch.isfinite(z).all()):
        return False
    most = chance / rows.numel() ** 0.5
    along, between = (z[:, 1:] * z[:, :-1]).mean(), (z[1:] * z[:-1]).mean()
    level = z.mean(1).pow(2).mean() * z.shape[1] - 1, z.mean(0).pow(2).mean() * z.shape[0] - 1
    spread = chance * (2 / min(z.shape)) ** 0.5
    mean = abs(float(rows.mean() / rows.std()))
    near = mean < most and max(abs(float(along)), abs(float(between))) < 1.5 * most
    return near and max(map(float, level)) < spread and _are_independent(z[:, :64], chance)


def _are_independent(columns: Tensor, chance: float) -> bool:
    """Whether the correlations of all pairs of columns are as small as chance makes them."""
    count, width = columns.shape
    units = torch.nn.functional.normalize(columns - columns.mean(0), dim=0)
    pairs = width * (width - 1) / 2
    squares = float((units.T @ units).triu(1).pow(2).sum()) * (count - 1)
    return squares < pairs + chance * math.sqrt(2 * pairs)


def _growing_lists() -> Iterator[tuple[tuple[str, int], Any]]:
    """Lists in variables of the program, and in the attributes of its objects there: by name and identity."""
    seen: set[int] = set()
    waiting = deque(
        (name, value, 2)
        for frame in frames_of_program()
        for name, value in list(variables_of(frame).items())[:_MAX_OBJECTS]
    )
    while waiting and len(seen) < _MAX_OBJECTS:
        name, value, depth = waiting.popleft()
        if id(value) in seen or isinstance(value, nn.Module | ModuleType | type | Tensor):
            continue
        seen.add(id(value))
        if isinstance(value, list | deque):
            yield (name, id(value)), value
        elif depth and isinstance(getattr(value, "__dict__", None), dict):
            waiting += ((f"{name}.{key}", each, depth - 1) for key, each in list(vars(value).items())[:64])


def _holds(entries: Any, given: Tensor) -> bool:
    """Whether each row is in another entry, and there are entries like these that are not drawn."""
    if not len(given) < len(entries) <= _MAX_ENTRIES:
        return False
    for place in range(8):
        column = [_tensor_at(entry, place) for entry in list(entries)]
        if column[0] is None:
            return False
        if any(each is None or each.shape != given.shape[1:] or each.dtype is not given.dtype for each in column):
            continue
        table = torch.stack([each for each in column if each is not None]).flatten(1)
        if table.numel() * len(given) > 1 << 24:
            return False
        found = {_only((table == row).all(1)) for row in given.flatten(1)}
        if None not in found and len(found) == len(given):
            return True
    return False


def _only(places: Tensor) -> int | None:
    found = places.nonzero().flatten()
    return int(found[0]) if len(found) == 1 else None


def _parts(entry: Any) -> list[Any]:
    """The tensors and arrays of an entry."""
    if not isinstance(entry, Tensor | Mapping | list | tuple) and isinstance(getattr(entry, "__dict__", None), dict):
        entry = vars(entry)
    values = entry.values() if isinstance(entry, Mapping) else entry if isinstance(entry, list | tuple) else [entry]
    numpy = sys.modules.get("numpy")
    return [v for v in values if is_tensor(v) or (numpy is not None and isinstance(v, numpy.ndarray))]


def _tensor_at(entry: Any, place: int) -> Tensor | None:
    """One of the tensors or arrays of an entry."""
    arrays = _parts(entry)
    if place >= len(arrays):
        return None
    found = arrays[place]
    found = found.detach() if is_tensor(found) else torch.from_numpy(found.copy())
    return found if describable(found) and found.device.type == "cpu" else None
