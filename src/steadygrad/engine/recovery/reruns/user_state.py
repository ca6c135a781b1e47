"""The program's own Python state, remembered while its lines are run again and restored afterwards.

Lines of a loop call functions and methods of the program, and these count, append and assign. Every list, dictionary,
set and object that can be reached from what the lines read is noted with what it holds, nearest first; after a run the
same objects hold the same things again. Tensors are not copied here: writing into one that was there before is
prevented (see `effects`). Weights, buffers and random numbers are restored by the owner of the step.
"""

from __future__ import annotations

import functools
import io
import itertools
import logging
import random
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from ....detect.tensors.foreign_objects import TENSORS, getattr, hasattr, is_tensor, isinstance
from ....detect.tensors.nested_tensors import first_tensor_in
from ..preserved_attributes import content_of_array, is_array, same_objects
from .stand_ins import StandIn

logger = logging.getLogger("steadygrad")
_MAX_OBJECTS = 10_000
MAX_WALKED = 2_000
_MAX_ARRAY = 1 << 20
_LARGE = 10_000
"""A list or a dictionary with more entries is copied once for all runs of some lines."""
_STANDARD = str(Path(types.__file__).resolve().parent)
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
_NOT_ENTERED = (
    "torch.optim", "torch.utils.data", "torch.distributed", "torch._", "logging", "threading", "multiprocessing",
    "concurrent", "asyncio", "socket", "importlib", "unittest", "steadygrad", "weakref", "subprocess", "matplotlib",
)  # fmt: skip
"""Libraries whose objects lines of a loop do not change on their way to a loss; some of them reach half the process."""
_OF_IMPORTS = ("__loader__", "__spec__", "__builtins__")
_ATOMS = (int, float, complex, str, bytes, bool, type(None), Tensor, torch.dtype, torch.device, range)


@functools.lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is the program's own, not one of a library."""
    if filename.startswith(("<frozen", "<string", "<__array")):
        return False
    inside = "site-packages" in filename or "dist-packages" in filename
    return not inside and not filename.startswith((_STANDARD, str(Path(__file__).resolve().parents[3])))


class LargeTables:
    """Copies of long lists and dictionaries for many runs of the same lines. One that the first run did not change is
    compared again only in the end, by `restore`: that takes longer than most runs."""

    def __init__(self, *, for_many_runs: bool = True) -> None:
        self._for_many_runs = for_many_runs
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._restored: dict[int, Callable[[], bool]] = {}
        self._unchanged: set[int] = set()

    def copy_of(self, value: Any, copy: Callable[[Any], Any]) -> Any:
        if len(value) <= _LARGE:
            return copy(value)
        if id(value) not in self._copies:
            self._copies[id(value)] = (value, copy(value))
        return self._copies[id(value)][1]

    def after_a_run(self, value: Any, undo: Callable[[], bool]) -> Callable[[], Any]:
        """What to do after each run, where `undo` restores the value and says whether it was changed."""
        key = id(value)
        if key not in self._copies or not self._for_many_runs:
            return undo
        first = key not in self._restored
        self._restored[key] = undo

        def restore() -> None:
            nonlocal first
            if key not in self._unchanged and not undo() and first:
                self._unchanged.add(key)
            first = False

        return restore

    def restore(self) -> None:
        """All of them as they were when they were copied."""
        for undo in self._restored.values():
            undo()


class UserState:
    """What can be reached from some values, as it is now. `restore` may be called as often as needed."""

    def __init__(
        self, roots: Iterable[Any], modules: Iterable[Mapping[str, Any]] = (), tables: LargeTables | None = None
    ) -> None:
        self._tables = tables or LargeTables(for_many_runs=False)
        self._undo: list[Callable[[], Any]] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        self.has_iterators = False
        """Whether something that can only be walked once is within reach."""
        self.complete = True
        """Whether everything within reach was noted."""
        self.drawn: dict[torch.Generator, tuple[Tensor, Tensor]] = {}
        """The states of generators before and after what was restored last, where they had moved."""
        self._frozen: list[Any] = []
        self._slots: dict[type, tuple[str, ...]] = {}
        waiting: deque[Any] = deque(roots)
        for names in modules:
            self._note_globals(names, waiting)
        while waiting:
            if len(self._seen) > _MAX_OBJECTS:
                self.complete = False
                break
            try:
                self._note(waiting.popleft(), waiting)
            except Exception as error:  # an object that does not want to be looked at
                logger.debug("an object of the program was passed by", exc_info=error)

    def restore(self) -> None:
        """The same objects hold the same things again."""
        for undo in self._undo:
            undo()

    def _restore_generator(self, generator: torch.Generator, state: Tensor) -> None:
        moved = generator.get_state()
        if not torch.equal(moved, state):
            self.drawn[generator] = (state, moved)
        generator.set_state(state)

    def thaw(self) -> None:
        """Large arrays can be written to again."""
        for array in self._frozen:
            array.flags.writeable = True
        self._frozen = []

    def freeze(self) -> None:
        """Large arrays cannot be written to until `thaw`: a line that tries raises instead."""
        for array in self._large:
            array.flags.writeable = False
            self._frozen.append(array)

    @property
    def _large(self) -> list[Any]:
        return [each for each in self._kept if is_array(each) and each.flags.writeable]

    # -- noting

    def _note(self, value: Any, waiting: deque[Any]) -> None:
        kind = type(value)
        if issubclass(kind, _ATOMS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if issubclass(kind, list):
            self._note_list(value, waiting)
        elif issubclass(kind, dict):
            self._note_dict(value, waiting)
            self._note_attributes(value, waiting)
        elif issubclass(kind, set):
            before = set(value)
            self._undo.append(lambda: _restore_set(value, before))
        elif issubclass(kind, deque):
            self._note_deque(value, waiting)
        elif issubclass(kind, tuple):
            waiting.extend(value[:MAX_WALKED])
            self._note_attributes(value, waiting)
        else:
            self._note_other(value, waiting)

    def _note_other(self, value: Any, waiting: deque[Any]) -> None:
        if issubclass(type(value), StandIn):
            self._undo.append(value._reset)  # of an outer time in which steps are run again
        elif isinstance(value, types.FunctionType):
            self._note_function(value, waiting)
        elif isinstance(value, types.MethodType):
            waiting.extend((value.__self__, value.__func__))
        elif isinstance(value, types.ModuleType):
            if is_users(getattr(value, "__file__", None) or "<frozen"):
                self._note_globals(vars(value), waiting)
        elif isinstance(value, type):
            self._note_class(value, waiting)
        elif isinstance(value, torch.Generator):
            self._undo.append(functools.partial(self._restore_generator, value, value.get_state()))
        elif isinstance(value, random.Random):
            drawn = value.getstate()
            self._undo.append(lambda: value.setstate(drawn))
            self._note_attributes(value, waiting)
        elif is_array(value) or type(value).__module__.startswith("numpy"):
            self._note_numpy(value)
        elif isinstance(value, torch.nn.Module):
            self._note_module(value, waiting)
        elif isinstance(value, io.StringIO | io.BytesIO):
            self._note_memory_file(value)
        elif isinstance(value, property):
            waiting.extend((value.fget, value.fset))
        elif isinstance(value, staticmethod | classmethod):
            waiting.append(value.__func__)
        elif not type(value).__module__.startswith(_NOT_ENTERED):
            if hasattr(type(value), "__next__"):
                self.has_iterators = True
            if isinstance(value, io.IOBase):
                self._note_file(value)
            self._note_attributes(value, waiting)

    def _note_memory_file(self, value: io.StringIO | io.BytesIO) -> None:
        if value.closed:
            return
        content: Any = value.getvalue()
        place, file = value.tell(), cast(Any, value)

        def undo() -> None:
            if not file.closed and (file.tell() != place or file.getvalue() != content):
                file.seek(0)
                file.truncate()
                file.write(content)
                file.seek(place)

        self._undo.append(undo)

    def _note_file(self, value: io.IOBase) -> None:
        """A file that is read goes on from the same place. Writing to one is prevented."""
        if value.closed or not value.readable() or value.writable():
            return
        try:
            place = value.tell()
        except (OSError, ValueError):
            return

        def undo() -> None:
            if not value.closed and value.tell() != place:
                value.seek(place)

        self._undo.append(undo)

    def _note_list(self, value: list[Any], waiting: deque[Any]) -> None:
        before = self._tables.copy_of(value, list)

        def undo() -> bool:
            if changed := not same_objects(value, before):
                value[:] = before
            return changed

        self._undo.append(self._tables.after_a_run(value, undo))
        if not (len(before) > MAX_WALKED and isinstance(before[0], _ATOMS)):
            waiting.extend(before[:MAX_WALKED])

    def _note_globals(self, names: Any, waiting: deque[Any]) -> None:
        """The names of a module. What the import system keeps there is not the program's, and reaches far: a test
        runner's loader holds all of its tests."""
        self._seen.update(id(names[name]) for name in _OF_IMPORTS if name in names)
        self._note_dict(names, waiting)

    def _note_dict(self, value: Any, waiting: deque[Any]) -> None:
        """Also of an object, whose attributes are a dictionary."""
        self._seen.add(id(value))
        before = self._tables.copy_of(value, lambda table: dict(dict.items(table)))
        clear, update = (OrderedDict.clear, OrderedDict.update) if isinstance(value, OrderedDict) else \
            (dict.clear, dict.update)  # fmt: skip

        def undo() -> bool:
            if same_objects(dict.keys(value), before) and same_objects(dict.values(value), before.values()):
                return False
            if before.keys() == dict.keys(value):
                for key, kept in before.items():
                    dict.__setitem__(value, key, kept)
            else:
                clear(value)
                update(value, before)
            return True

        self._undo.append(self._tables.after_a_run(value, undo))
        waiting.extend(itertools.islice(before.values(), MAX_WALKED))

    def _note_module(self, value: torch.nn.Module, waiting: deque[Any]) -> None:
        """The plain attributes of a module. Its parameters, buffers, parts and hooks are not the loop's to change."""
        attributes = vars(value)
        before = {key: kept for key, kept in attributes.items() if key not in _OF_EVERY_MODULE}

        def undo() -> None:
            for key in [key for key in attributes if key not in before and key not in _OF_EVERY_MODULE]:
                del attributes[key]
            for key, kept in before.items():
                if attributes.get(key, undo) is not kept:
                    attributes[key] = kept

        self._undo.append(undo)
        waiting.extend(before.values())
        waiting.extend(value._modules.values())
        for hooks in (value._forward_hooks, value._forward_pre_hooks, value._backward_hooks):
            waiting.extend(hooks.values())
        for parameter in value._parameters.values():
            waiting.extend((getattr(parameter, "_backward_hooks", None) or {}).values())

    def _note_deque(self, value: deque[Any], waiting: deque[Any]) -> None:
        before = list(value)

        def undo() -> None:
            if not same_objects(value, before):
                value.clear()
                value.extend(before)

        self._undo.append(undo)
        waiting.extend(before[:MAX_WALKED])

    def _note_function(self, value: types.FunctionType, waiting: deque[Any]) -> None:
        if not is_users(value.__code__.co_filename):
            return
        if id(value.__globals__) not in self._seen:
            self._note_globals(value.__globals__, waiting)
        for cell in value.__closure__ or ():
            self._note_cell(cell, waiting)
        waiting.extend((value.__dict__, value.__defaults__, value.__kwdefaults__))

    def _note_cell(self, cell: types.CellType, waiting: deque[Any]) -> None:
        try:
            before = cell.cell_contents
        except ValueError:
            return  # empty
        if id(cell) in self._seen:
            return
        self._seen.add(id(cell))
        self._kept.append(cell)

        def undo() -> None:
            cell.cell_contents = before

        self._undo.append(undo)
        waiting.append(before)

    def _note_class(self, value: type, waiting: deque[Any]) -> None:
        """What a class of the program's own keeps in its attributes, such as a counter of all instances."""
        module = sys.modules.get(value.__module__)
        if module is not None and not is_users(getattr(module, "__file__", None) or "<frozen"):
            return
        waiting.extend(value.__bases__)
        for name, kept in list(vars(value).items()):
            if isinstance(kept, types.FunctionType):
                waiting.append(kept)
            elif not name.startswith("__"):
                waiting.append(kept)
                if isinstance(kept, _ATOMS):
                    self._undo.append(functools.partial(_restore_attribute, value, name, kept))

    def _note_numpy(self, value: Any) -> None:
        if is_array(value):
            if value.nbytes > _MAX_ARRAY:
                self._kept.append(value)
            else:
                self._undo.append(content_of_array(value))
        elif hasattr(value, "bit_generator"):
            generator = value.bit_generator
            state = generator.state
            self._undo.append(lambda: setattr(generator, "state", state))

    def _note_attributes(self, value: Any, waiting: deque[Any]) -> None:
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and id(attributes) not in self._seen:
            self._note_dict(attributes, waiting)
        kind = type(value)
        if (slots := self._slots.get(kind)) is None:
            slots = self._slots[kind] = tuple(slots_of(kind))
        for name in slots:
            kept = getattr(value, name, self)
            if kept is not self:
                waiting.append(kept)
                self._undo.append(functools.partial(_restore_attribute, value, name, kept))


def slots_of(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        yield from (name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__"))


def _restore_set(value: set[Any], before: set[Any]) -> None:
    if value != before:
        value.clear()
        value.update(before)


def _restore_attribute(owner: Any, name: str, kept: Any) -> None:
    if getattr(owner, name, None) is not kept:
        try:
            setattr(owner, name, kept)
        except (AttributeError, TypeError):
            pass  # read-only: then nothing of ours wrote it


_LASTING = (torch.nn.Module, torch.optim.Optimizer, LRScheduler)
_HOLD_NONE = (Tensor, type, types.ModuleType)
"""What is no object around a model. A module like torch has thousands of names, and is there on every step."""
_IS_NO_DATA = (torch.nn.Module, types.ModuleType, int, float, str, bytes)
_MANY = 1024
"""An object with more attributes, or a container with more items, is data of the program's own and no batch."""


class TakenValues(Mapping[str, Any]):
    """Values that lines read, by name. What the program owns for longer than a batch (a model, an optimizer, an object
    around them) is not kept alive: the program may drop it to have its memory back."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {name: _weakly(value) for name, value in values.items()}

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return value() if type(value) is weakref.ref else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def now(self) -> dict[str, Any]:
        """All of them, without a Python call for each."""
        return {name: value() if type(value) is weakref.ref else value for name, value in self._values.items()}

    def kept(self) -> list[Any]:
        """Those that are kept alive."""
        return [value for value in self._values.values() if type(value) is not weakref.ref]


def _weakly(value: Any) -> Any:
    """A model, an optimizer, or an object of the program that holds one of them, by a weak reference."""
    if issubclass(type(value), _HOLD_NONE):
        return value
    if not issubclass(type(value), _LASTING):
        inside = {} if callable(value) else getattr(value, "__dict__", {})
        if not inside or len(inside) > _MANY or not any(isinstance(each, _LASTING) for each in inside.values()):
            return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def is_data(value: Any) -> bool:
    """Whether it holds tensors and is neither a model, a function nor a whole data set."""
    if type(value) in TENSORS:
        return True
    if issubclass(type(value), _IS_NO_DATA) or callable(value):
        return False
    if is_tensor(value):
        return True
    if isinstance(value, list | tuple | dict) and len(value) > _MANY:
        return False
    return first_tensor_in(value) is not None
