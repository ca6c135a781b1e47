"""What a forward pass changes besides the loss: buffers, plain tensor attributes, counters, the scaler, RNG.

A refused step must leave no trace of it, and most of it is never touched. So every registered tensor starts *cold*:
one copy in host memory, taken once. A tensor seen to move becomes *hot* and is copied on its device before every
forward from then on. Copies of hot tensors are pooled and made with one multi-tensor call.

Movement is seen by version counter and identity after every forward, and by value in the first steps' audits and
in every incident, because batch norm's kernels write running statistics without counting a version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from ...detect.tensors.foreign_objects import is_tensor, isinstance
from ...detect.tensors.readable_tensors import can_be_copied, finite_as_far_as_read, only_shape, write_values
from ..step.trained_parameters import ModuleTree
from .moving_tensors import FrozenParameters, LeftAlone, Slot, getter, prefix_of, setter
from .rng import Asides, RngState, put_rng, rewound, same_rng, take_rng

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_STRETCHES, _IN_ONE_WINDOW = 512, 4096
"""Stretches of training code whose random states are kept before a window begins, and while it lasts."""
# Set by nn.Module itself and never part of the numbers.
_INTERNAL = frozenset({"training", "call_super_init", "dump_patches", "_is_full_backward_hook"})


@dataclass(slots=True)
class Entry:
    """The forward-touched state at one moment; `ForwardState.restore` restores it."""

    rng: RngState
    hot: list[tuple[Slot, Tensor, Tensor]]  # slot, the object it held, a copy of its values
    counters: dict[tuple[int, str], Any]
    takes_since_audit: int
    extras: dict[str, Any] = field(default_factory=dict)
    place: int = 0
    """Which stretch of training code it begins: see `ForwardState.rng_without`."""


class ForwardState:
    """Takes and restores what a forward pass may change. Taking does not sync with the device."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._tree = ModuleTree(self._modules)
        self.changes = 0
        """How often modules were found to have been added, removed or replaced."""
        self._slots: dict[str, Slot] = {}
        self._finite_at_start: dict[str, bool] = {}
        self._counters: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._hot_counters: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._cold_counters: dict[tuple[int, str], Any] = {}
        self._counter_names: dict[tuple[int, str], str] = {}
        self._takes_since_audit = 0
        self._pool: list[list[Tensor]] = []
        self._frozen, self._left_alone = FrozenParameters(self._modules), LeftAlone()
        self._extras: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._marks = self._all_marks()
        self._told: set[str] = set()
        self._stretches: list[tuple[RngState, RngState | None]] = []
        self._num_stretches = self._window_began = 0
        self._asides = Asides()
        self._find_slots()
        self._remember_counters()
        self._cold: tuple[list[tuple[int, str]], list[dict[str, Any]], list[str], list[Any]] = ([], [], [], [])
        self._list_cold_counters()

    def register(self, name: str, take: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Add state the guard cannot see: `take()` returns a copy, `put(copy)` restores it."""
        self._extras[name] = (take, put)

    def refresh(self) -> bool:
        """To be called before a forward. Whether modules were added, removed or replaced since the last: then what they
        hold is taken from now on, before every forward."""
        if not self._tree.changed():
            return False
        self.changes += 1
        self._look_at_counters()
        self._marks = {key: self._marks.get(key, mark) for key, mark in self._all_marks().items()}
        before, self._slots = self._slots, {}
        self._find_slots(hot=True, known=before)
        self._frozen = FrozenParameters(self._modules)
        self._slots |= self._frozen.named([name for name, slot in before.items() if slot.cold is None])
        self._counters, self._counter_names = {}, {}
        self._remember_counters()
        homes = {key: home for key, (home, _, _) in self._counters.items()}
        hot = {key: each for key, each in self._hot_counters.items() if homes.get(key) is each[0]}
        self._hot_counters, self._cold_counters = hot, {key: self._cold_counters[key] for key in hot}
        self._list_cold_counters()
        return True

    def non_finite_at_start(self) -> frozenset[str]:
        """Tensors that held a NaN or an infinity before the first step: additive masks, values not yet measured."""
        for slot in self._slots.values():
            if slot.name not in self._finite_at_start:
                self._finite_at_start[slot.name] = slot.cold is None or finite_as_far_as_read(slot.cold)
        return frozenset(name for name, finite in self._finite_at_start.items() if not finite)

    def take(self) -> Entry:
        """A copy of the state before a forward pass. Allocates for hot tensors only, does not sync."""
        self._takes_since_audit += 1
        if self._waits:
            self._find_slots(hot=True)
        if self._slots:
            self._look_before_forward()
        self._look_at_counters()
        if self._frozen.looks:
            self._frozen.before_forward()
        hot = [slot for slot in self._slots.values() if slot.hot] if self._slots else []
        copies = self._copies([slot.tensor for slot in hot]) if hot else []
        rng = take_rng()
        self._asides.window_begins()
        self._window_began = self._num_stretches
        self._begin_stretch(rng, _STRETCHES)
        return Entry(
            rng,
            [(slot, slot.tensor, copy) for slot, copy in zip(hot, copies, strict=True)] if hot else [],
            {key: home.get(name) for key, (home, name) in self._hot_counters.items()} if self._hot_counters else {},
            self._takes_since_audit,
            self.extras() if self._extras else {},
            self._num_stretches - 1,
        )

    @property
    def num_modules(self) -> int:
        return len(self._modules)

    def include(self, modules: list[nn.Module], entry: Entry) -> None:
        """Further modules, before their first forward in the window that `entry` began: it is as if taken with them."""
        first, slots, counters = len(self._modules), set(self._slots), set(self._counters)
        self._modules += modules
        self._tree = ModuleTree(self._modules)
        self._marks |= {id(module): _marks_of(module) for root in modules for module in root.modules()}
        self._frozen.include(modules, first)
        self._find_slots(hot=True)
        fresh = [slot for name, slot in self._slots.items() if name not in slots]
        entry.hot += [(slot, slot.tensor, slot.tensor.detach().clone()) for slot in fresh]
        self._remember_counters(first)
        for key, (home, name, value) in self._counters.items():
            if key not in counters:
                self._hot_counters[key] = (home, name)
                self._cold_counters[key] = entry.counters[key] = value

    def took_again(self) -> None:
        """Another forward of the same window begins: what other code draws between two of them is not its own."""
        rng, last = take_rng(), self._stretches[-1] if self._num_stretches > self._window_began else None
        if last is not None and last[1] is not None and same_rng(last[1], rng):
            self._stretches[-1] = (last[0], None)  # no one has drawn in between: both are one stretch
        else:
            self._begin_stretch(rng, _IN_ONE_WINDOW)

    def _begin_stretch(self, rng: RngState, most: int) -> None:
        if len(self._stretches) >= most:
            del self._stretches[: -_STRETCHES // 2]
        self._stretches.append((rng, None))
        self._num_stretches += 1

    def left(self) -> None:
        """The forward (and backward) that the last `take` was for has ended. Does not sync."""
        if self._stretches:
            self._stretches[-1] = (self._stretches[-1][0], take_rng())

    @property
    def place(self) -> int:
        """The stretch of training code that comes next."""
        return self._num_stretches

    def aside(self, *, began: bool) -> None:
        """A forward without gradients begins or ends, before the first one of a window. Does not sync."""
        self._asides.began() if began else self._asides.ended()

    @property
    def uncertain_draws(self) -> list[str]:
        """What may have been drawn for the window under way before it began, and is not known to be its own."""
        return [] if self._asides.usual else ["random numbers (drawn by calls without gradients before it)"]

    def drawn_before(self, entry: Entry) -> bool:
        """Whether other code drew numbers of torch between the stretch before an entry and the entry, or it is not
        known."""
        before = entry.place - (self._num_stretches - len(self._stretches)) - 1
        left = self._stretches[before][1] if before >= 0 else None
        for began, ended in (*self._asides.of_window, (entry.rng, None)):
            if left is None or not same_rng(
                replace(left, python=(), numpy=None), replace(began, python=(), numpy=None)
            ):
                return True
            left = ended
        return False

    def rng_without(self, place: int) -> RngState:
        """The random states as if training code since `place` had drawn nothing; draws of other code stay drawn."""
        first = place - (self._num_stretches - len(self._stretches))
        before = self._asides.of_window if self._asides.usual and place == self._window_began else ()
        return rewound(take_rng(), [*before, *self._stretches[first:]]) if first >= 0 else take_rng()

    def forget_since(self, place: int) -> None:
        """Training code since `place` is as if it had never run."""
        del self._stretches[max(0, place - (self._num_stretches - len(self._stretches))) :]
        self._num_stretches = place

    def release(self, entry: Entry) -> None:
        """Give an entry's copies back to the pool; the entry must not be restored afterwards."""
        if entry.hot and len(self._pool) < 4:
            self._pool.append([copy for _, _, copy in entry.hot])

    def _look_before_forward(self) -> None:
        """Cold tensors that someone has set since, or whose module now trains and did not: their copies are stale or
        soon will be, so they are hot from here. Host work only, over cold tensors."""
        for slot in self._slots.values():
            if slot.hot:
                continue
            if slot.training is not slot.module.training or slot.moved():
                now = slot.get()
                if is_tensor(now):
                    slot.hot, slot.tensor, slot.version = True, now, now._version

    def _look_at_counters(self) -> None:
        """Plain counters that have moved: what they are now is what they were before this forward, whoever moved them,
        and what they were is what they were before the forwards until now. Host only, tens of nanoseconds each."""
        keys, homes, names, values = self._cold
        now = list(map(dict.get, homes, names))  # every step's path, over every number of every module
        if now == values:
            return
        moved = [key for key, value, before in zip(keys, now, values, strict=True)
                 if value is not before and value != before]  # fmt: skip
        for key in moved:
            home, name, before = self._counters[key]
            self._counters[key] = (home, name, home.get(name))
            self._hot_counters[key], self._cold_counters[key] = (home, name), before
        if moved:
            self._list_cold_counters()

    def _list_cold_counters(self) -> None:
        cold = {key: each for key, each in self._counters.items() if key not in self._hot_counters}
        self._cold = (
            list(cold), [home for home, _, _ in cold.values()], [name for _, name, _ in cold.values()],
            [value for _, _, value in cold.values()],
        )  # fmt: skip

    def notice(self) -> None:
        """After a forward pass: find tensors that moved for the first time. Host work only.

        Where one of a module's tensors moved, the others may have moved without being counted.
        """
        if self._frozen.marks:
            self._slots |= self._frozen.moved()
        if not self._slots:
            return
        moved = {id(slot.module) for slot in self._slots.values() if not slot.hot and slot.moved()}
        for slot in self._slots.values():
            if moved and id(slot.module) in moved:
                slot.hot = True
            if slot.hot:
                now = slot.get()
                if is_tensor(now):
                    slot.tensor, slot.version = now, now._version

    @torch.no_grad()
    def restore(self, entry: Entry) -> list[str]:
        """Restore everything bit for bit, values into the same storage.

        Returns the names of what is not known for certain at that moment: it moved, unseen, for the first time since
        the last audit, and there were other forwards between that audit and the entry. It is restored to the audited
        value.
        """
        self.notice()
        held = {id(slot) for slot, _, _ in entry.hot}
        for slot, tensor, copy in entry.hot:
            self._put_back(slot, tensor, copy)
        unsure: list[str] = []
        for slot in self._slots.values():
            if id(slot) in held:
                continue
            if not slot.hot and slot.differs():
                unsure.append(slot.name)
                slot.hot = True
            if slot.hot and slot.cold is not None:
                self._put_back(slot, slot.tensor, slot.cold)
        # Frozen parameters that moved for the first time, or are too large: there is no copy of them.
        lost = [slot.name for slot in self._slots.values() if slot.cold is None and id(slot) not in held]
        lost += self._frozen.not_restored + self._left_alone.moved()
        exact = entry.takes_since_audit <= 1
        late = self.audit()
        for key, (home, name) in self._hot_counters.items():
            if key in entry.counters:
                home[name] = entry.counters[key]
            else:
                home[name] = self._cold_counters[key]
            if key in self._counters:
                self._counters[key] = (home, name, home[name])
        self.put_extras(entry.extras)
        put_rng(entry.rng)
        return lost + ([] if exact else unsure + [name for _, name in late])

    @contextmanager
    def as_of(self, entry: Entry | None) -> Iterator[None]:
        """Within the block hot tensors have the values they had when `entry` was taken. Does not sync.

        For what must see the model as it was before a forward that is already under way.
        """
        if entry is None or not entry.hot:
            yield
            return
        now = self._copies([tensor for _, tensor, _ in entry.hot])
        with torch.no_grad():
            for _, tensor, copy in entry.hot:
                write_values(tensor.data, copy)
        try:
            yield
        finally:
            with torch.no_grad():
                for (slot, tensor, _), value in zip(entry.hot, now, strict=True):
                    write_values(tensor.data, value)
                    slot.version = tensor._version

    def audit(self, *, values: bool = True) -> dict[tuple[int, str], Any]:
        """Plain counters on modules that moved for the first time, with their values before; taken from now on.

        With `values` it also compares cold tensors with their copies, which reads the device. Walks every module's
        attributes, so it runs on a few early steps, on a schedule, and after incidents.
        """
        self._takes_since_audit = 0
        self._frozen.look_again()
        for slot in self._slots.values() if values else ():
            slot.hot = slot.hot or slot.differs()
        moved: dict[tuple[int, str], Any] = {}
        for key, (home, name, before) in self._counters.items():
            now = home.get(name)
            if now is before or now == before:
                continue
            self._counters[key] = (home, name, now)
            if key not in self._hot_counters:
                self._hot_counters[key] = (home, name)
                self._cold_counters[key] = moved[key] = before
        if moved:
            self._list_cold_counters()
        return moved

    def unregistered(self) -> list[str]:
        """Attributes that changed and that nothing can restore: lists, mappings and sets that grew, shrank or were
        replaced, and attributes that were not there before. Each is told once. For the rare path: walks everything."""
        found: list[str] = []
        for path, module in ((p, m) for root in self._modules for p, m in root.named_modules()):
            marks = self._marks.setdefault(id(module), {})
            for name, mark in _marks_of(module).items():
                if marks.get(name, "absent") != mark:
                    found.append(f"{path}.{name}" if path else name)
                    marks[name] = mark
        fresh = [name for name in found if name not in self._told and name not in self._slots]
        self._told.update(fresh)
        return fresh

    # -- the whole, for snapshots and checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Every registered tensor by name, live."""
        return {name: now for name, slot in self._slots.items() if isinstance(now := slot.get(), Tensor)}

    def tree_at(self, entry: Entry) -> dict[str, Any]:
        """The parts of a training state that a forward may change, as they were when `entry` was taken. No copies."""
        taken = {id(slot): copy for slot, _, copy in entry.hot}
        first = {id(slot): slot.cold for slot in self._slots.values() if slot.cold is not None}
        values = {**first, **taken}
        tensors = {name: values.get(id(slot), slot.tensor) for name, slot in self._slots.items()}
        counters = {self._counter_names[key]: value for key, value in entry.counters.items()}
        return {"buffers": tensors, "counters": counters, "extras": entry.extras, "rng": entry.rng}

    @torch.no_grad()
    def put_tensors(self, values: dict[str, Tensor]) -> None:
        self._slots |= self._frozen.named(values.keys() - self._slots.keys())
        for name, value in values.items():
            if name in self._slots:
                slot = self._slots[name]
                self._put_back(slot, slot.tensor, value)
                if not slot.hot:
                    slot.cold = value.detach().to("cpu", copy=True)

    def counters(self) -> dict[str, Any]:
        """Moving counters by a name that is stable between runs of the same program."""
        return {self._counter_names[key]: home.get(name) for key, (home, name) in self._hot_counters.items()}

    def put_counters(self, values: dict[str, Any]) -> None:
        by_name = {full: key for key, full in self._counter_names.items()}
        for key, (home, name) in self._hot_counters.items():
            if self._counter_names[key] not in values and key in self._counters:
                # It first moved after those values were taken.
                home[name] = self._cold_counters[key]
                self._counters[key] = (home, name, home[name])
        for full, value in values.items():
            if full in by_name:
                key = by_name[full]
                home, name, _ = self._counters[key]
                home[name] = value
                self._counters[key] = (home, name, value)
                self._hot_counters[key] = (home, name)
                self._cold_counters.setdefault(key, value)
        self._list_cold_counters()

    def extras(self) -> dict[str, Any]:
        return {name: take() for name, (take, _) in self._extras.items()}

    def put_extras(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name in self._extras:
                self._extras[name][1](value)

    # -- finding what there is

    def _all_marks(self) -> dict[int, dict[str, Any]]:
        return {id(module): _marks_of(module) for root in self._modules for module in root.modules()}

    def _find_slots(self, *, hot: bool = False, known: Mapping[str, Slot] | None = None) -> None:
        """All tensors that are not known yet. Those of a lazy module come to be in its first forward."""
        self._waits = False
        for root_index, root in enumerate(self._modules):
            prefix = prefix_of(root_index)
            for path, module in root.named_modules():
                for name, value, get, put in _tensors_of(module):
                    full = prefix + (f"{path}.{name}" if path else name)
                    if full in self._slots:
                        continue
                    if is_lazy(value):
                        self._waits = True
                        continue
                    if known is not None and full in known and known[full].module is module:
                        self._slots[full] = known[full]
                        continue
                    if not can_be_copied(value):
                        self._left_alone.note(full, get, value)
                        continue
                    cold = value.detach().to("cpu", copy=True)
                    self._slots[full] = Slot(full, module, get, put, value, value._version, cold, module.training, hot)

    def _remember_counters(self, first: int = 0) -> None:
        for root_index, root in enumerate(self._modules[first:], first):
            for path, module in root.named_modules():
                if isinstance(module, nn.parallel.DistributedDataParallel):
                    continue  # its numbers say how it communicates, and are no part of the step's
                home = vars(module)
                for name, value in home.items():
                    if name not in _INTERNAL and type(value) in (int, float, bool):
                        self._counters[id(module), name] = (home, name, value)
                        self._counter_names[id(module), name] = f"{root_index}:{path}.{name}"

    # -- copying

    @torch.no_grad()
    def _copies(self, tensors: list[Tensor]) -> list[Tensor]:
        if not tensors:
            return []
        reused = self._pool.pop() if self._pool else []
        if len(reused) != len(tensors) or any(
            a.shape != b.shape or a.dtype != b.dtype or a.device != b.device
            for a, b in zip(reused, tensors, strict=False)
        ):
            return [t.detach().clone() for t in tensors]
        for dtype in {t.dtype for t in tensors}:
            pairs = [(a, b.detach()) for a, b in zip(reused, tensors, strict=True) if b.dtype == dtype]
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
        return reused

    def _put_back(self, slot: Slot, tensor: Tensor, copy: Tensor) -> None:
        if slot.get() is not tensor:
            slot.put(tensor)
        write_values(tensor.data, copy)
        slot.tensor, slot.version = tensor, tensor._version


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor, Callable[[], Any], Callable[[Any], None]]]:
    """Buffers (also non-persistent ones) and tensors kept as plain attributes."""
    for home in (module._buffers, vars(module)):
        for name, value in list(home.items()):
            if is_tensor(value) and not isinstance(value, nn.Parameter) and not only_shape(value):
                yield name, value, getter(home, name), setter(home, name)


def _marks_of(module: nn.Module) -> dict[str, Any]:
    """A word for each attribute by which a change can be seen: which object and how long for what has a length, and
    for the rest only that it is there (tensors and numbers are compared elsewhere). DDP's own books are left alone."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return {}
    return {
        name: (id(value), len(value)) if isinstance(value, list | dict | set | deque) else "there"
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE
        and isinstance(value, list | dict | set | deque | Tensor | int | float)
        # Handles of hooks are made and dropped around generation; they hold no state of the numbers.
        and not (isinstance(value, list) and any(isinstance(item, RemovableHandle) for item in value))
    }
