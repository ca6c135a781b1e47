"""What a loss function and its model can reach besides weights and buffers, kept while a step is run again.

Programs count, collect and draw numbers inside their loss and their model: a list of losses, a queue of features, a
generator for noise. Whatever runs a step again, to find a cause or to try a rate, ends with all of that as it was.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ....detect.tensors.foreign_objects import getattr, is_tensor, isinstance
from ....detect.tensors.readable_tensors import why_not_read
from ...early_checks.held_state import restore_values
from ...state.training_state import TrainingState
from ...step.user_step import UserStep
from ..preserved_attributes import content_of_array, is_array
from .rehearsal import Rehearsal
from .stand_ins import StandIns
from .user_state import MAX_WALKED, UserState, is_users, slots_of

logger = logging.getLogger("steadygrad")
_FRAMEWORKS = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "trl", "datasets", "queue",
)  # fmt: skip
"""A step that is run again leaves their own objects alone, or they are restored by the loop that knows them."""
_SMALL, _ALL, _MOST = 256 << 10, 256 << 20, 1 << 30
"""Bytes: tensors that are taken for written to; all together that are copied whatever they are; and the most."""
_OFTEN = 8
_MISSING = object()
_OF_MODULES = frozenset(vars(nn.Module()))
_NOT_KEPT = "an object of the program could not be kept as it was"


class ReachedState(UserState):
    """What some functions, modules and objects lead to, as it is now: lists, dictionaries, objects, generators,
    tensors. Of the globals of a file only those that the functions name. `own` are tensors restored elsewhere."""

    def __init__(self, roots: Iterable[Any], own: set[int], stand_ins: StandIns | None = None) -> None:
        self._stand_ins = stand_ins
        self._reached: dict[int, Tensor] = {}
        self._names: dict[int, dict[str, Any]] = {}
        self._of_modules: list[Callable[[], Any]] = []
        self._in_arrays = 0
        super().__init__(roots)
        beside = [tensor for key, tensor in self._reached.items() if key not in own]
        readable = sorted((t for t in beside if why_not_read(t) is None and not t.is_inference()), key=num_bytes)
        self._tensors: list[tuple[Tensor, int, Tensor]] = []
        taken = 0
        for tensor in readable:
            taken += num_bytes(tensor)
            if taken <= _ALL or (taken <= _MOST and tensor._version >= _OFTEN):
                self._tensors.append((tensor, tensor._version, tensor.detach().to("cpu", copy=True)))
        written = [t for t in readable if num_bytes(t) <= _SMALL or t._version >= _OFTEN]
        self.exact = (
            self.complete
            and not self.has_iterators
            and self._in_arrays <= _ALL
            and len(readable) == len(beside)
            and len({id(t) for t in written} - {id(t) for t, *_ in self._tensors}) == 0
        )
        """Whether all of it can be restored. A large tensor that was hardly ever written to, such as a frozen
        teacher's, is taken for one that is not."""

    def restore(self) -> None:
        """The same objects hold the same things again. What cannot be restored is left, the rest is."""
        self._restore([*self._undo, *self._of_modules], self._tensors)

    def restore_between(self) -> None:
        """Between two runs: all but the attributes of modules, which whoever runs the step again may have set. A large
        tensor is compared in the end only, unless its version tells that it was written to."""
        seen = [each for each in self._tensors if num_bytes(each[0]) <= _SMALL or each[0]._version != each[1]]
        self._restore(self._undo, seen)

    def _restore(self, undos: Iterable[Callable[[], Any]], tensors: Iterable[tuple[Tensor, int, Tensor]]) -> None:
        if self._stand_ins is not None:
            self._stand_ins.reset()
        for undo in undos:
            try:
                undo()
            except Exception as error:
                logger.debug(_NOT_KEPT, exc_info=error)
        for tensor, version, values in tensors:
            with _logged():
                restore_values(tensor, version, values.to(tensor.device))

    def _note_attributes(self, value: Any, waiting: deque[Any]) -> None:
        if self._stand_ins is not None:
            for name in slots_of(type(value)):
                held = getattr(value, name, None)
                self._stand_ins.put(held, partial(getattr, value, name, None), partial(setattr, value, name))
        super()._note_attributes(value, waiting)
        waiting.append(type(value))

    def _note_list(self, value: list[Any], waiting: deque[Any]) -> None:
        self._stand_in(value, enumerate(value), list.__getitem__, list.__setitem__)
        super()._note_list(value, waiting)

    def _note_dict(self, value: Any, waiting: deque[Any]) -> None:
        self._stand_in(value, list(dict.items(value)), dict.get, dict.__setitem__)
        super()._note_dict(value, waiting)

    def _note_deque(self, value: deque[Any], waiting: deque[Any]) -> None:
        self._stand_in(value, enumerate(list(value)), deque.__getitem__, deque.__setitem__)
        super()._note_deque(value, waiting)

    def _note_cell(self, cell: types.CellType, waiting: deque[Any]) -> None:
        if self._stand_ins is not None:
            with suppress(ValueError):  # empty
                self._stand_ins.put(
                    cell.cell_contents, lambda: cell.cell_contents, partial(setattr, cell, "cell_contents")
                )
        super()._note_cell(cell, waiting)

    def _note_class(self, value: type, waiting: deque[Any]) -> None:
        module = sys.modules.get(value.__module__)
        if self._stand_ins is not None and is_users(getattr(module, "__file__", None) or "<frozen"):
            for name, kept in list(vars(value).items()):
                self._stand_ins.put(kept, partial(getattr, value, name, None), partial(setattr, value, name))
        super()._note_class(value, waiting)

    def _stand_in(self, value: Any, items: Iterable[tuple[Any, Any]], get: Any, put: Any) -> None:
        """What must not be used is exchanged before the contents are noted."""
        if self._stand_ins is not None and len(value) <= MAX_WALKED:
            for key, held in items:
                self._stand_ins.put(held, partial(get, value, key), partial(put, value, key))

    def _note(self, value: Any, waiting: deque[Any]) -> None:
        if is_tensor(value):
            self._reached[id(value)] = value
        else:
            super()._note(value, waiting)

    def _note_other(self, value: Any, waiting: deque[Any]) -> None:
        if isinstance(value, functools.partial):
            waiting.extend((value.func, value.args, value.keywords))
        elif isinstance(value, Dataset | DataLoader):
            return
        elif callable(value) or not type(value).__module__.startswith(_FRAMEWORKS):
            super()._note_other(value, waiting)
        elif type(attributes := getattr(value, "__dict__", None)) is dict:
            waiting.extend(each for each in attributes.values() if isinstance(each, types.FunctionType))

    def _note_numpy(self, value: Any) -> None:
        if not is_array(value):
            super()._note_numpy(value)
        elif value.flags.writeable:
            self._in_arrays += value.nbytes
            if self._in_arrays <= _ALL:
                self._undo.append(content_of_array(value))

    def _note_module(self, value: nn.Module, waiting: deque[Any]) -> None:
        plain = [(name, held) for name, held in vars(value).items() if name not in _OF_MODULES]
        self._stand_in(vars(value), plain, dict.get, dict.__setitem__)
        super()._note_module(value, waiting)
        self._of_modules.append(self._undo.pop())
        waiting.extend((*value._parameters.values(), *value._buffers.values(), type(value)))

    def _note_function(self, value: types.FunctionType, waiting: deque[Any]) -> None:
        if not is_users(value.__code__.co_filename):
            return
        for cell in value.__closure__ or ():
            self._note_cell(cell, waiting)
        if self._stand_ins is not None and value.__defaults__:
            self._stand_ins.put(value.__defaults__, lambda: value.__defaults__, partial(setattr, value, "__defaults__"))
        waiting.extend((value.__dict__, value.__defaults__, value.__kwdefaults__))
        self._note_named(value.__globals__, set(_names_in(value.__code__)), waiting)

    def _note_named(self, names: dict[str, Any], wanted: set[str], waiting: deque[Any]) -> None:
        known = self._names.setdefault(id(names), {})
        for name in wanted - known.keys():
            if self._stand_ins is not None:
                self._stand_ins.put(names.get(name), partial(names.get, name), partial(names.__setitem__, name))
            known[name] = before = names.get(name, _MISSING)
            if before is not _MISSING:
                waiting.append(before)
            self._undo.append(partial(_rebind, names, name, before))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _rebind(names: dict[str, Any], name: str, before: Any) -> None:
    if before is _MISSING:
        names.pop(name, None)
    elif names.get(name, _MISSING) is not before:
        names[name] = before


def num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def reached_by(program: UserStep, live: Mapping[str, Any], stand_ins: StandIns | None = None) -> ReachedState:
    """What a step's own code reaches; `live` names the tensors that are restored with the training state."""
    own = {id(tensor) for tensor in (*program.model.parameters(), *program.model.buffers())}
    own |= {id(tensor) for tensor in (*live["parameters"].values(), *live["buffers"].values())}
    return ReachedState([program.loss_fn, program.model, *program.beside], own, stand_ins)


@contextmanager
def reached_objects_kept(
    roots: Sequence[Any], *, strict: bool = True, restored: Iterable[Tensor] = ()
) -> Iterator[Rehearsal]:
    """The same for what some objects reach, of which weights and buffers, and the tensors that are `restored`, are
    restored by whoever runs them again."""
    modules = [root for root in roots if isinstance(root, nn.Module)]
    own = {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    own |= {id(tensor) for tensor in restored}
    with _kept(lambda stand_ins: ReachedState(roots, own, stand_ins), strict=strict) as (_, stand_ins):
        yield Rehearsal(stand_ins)


@contextmanager
def reached_state_kept(program: UserStep, state: TrainingState) -> Iterator[None]:
    """Around anything that runs a step again: all that its code reaches is afterwards as before. A run that would leave
    a trace elsewhere raises HasEffect."""
    outer = program.restore_reached, program.rehearsal
    with _kept(lambda stand_ins: reached_by(program, state.live(), stand_ins)) as (reached, stand_ins):
        program.restore_reached = reached.restore_between if reached is not None else outer[0]
        program.rehearsal = Rehearsal(stand_ins, runs=program.accumulate)
        try:
            yield
        finally:
            program.restore_reached, program.rehearsal = outer


def closed_within(program: UserStep, state: TrainingState) -> str | None:
    """What a step's code reaches that must not be used when it is run again, as a clause; None if nothing is known."""
    stand_ins = StandIns()
    try:
        with _logged():
            reached_by(program, state.live(), stand_ins)
        return stand_ins.closed
    finally:
        stand_ins.close()


_Kept = tuple[ReachedState | None, StandIns]


@contextmanager
def _kept(note: Callable[[StandIns], ReachedState], *, strict: bool = True) -> Iterator[_Kept]:
    reached: ReachedState | None = None
    stand_ins = StandIns(strict=strict and not _several_ranks())
    try:
        with _logged():
            reached = note(stand_ins)
        yield reached, stand_ins
    finally:
        if reached is not None:
            reached.restore()
        stand_ins.close()


def _several_ranks() -> bool:
    """Then no run may end where those of the other ranks go on: they would wait for this one."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


@contextmanager
def _logged() -> Iterator[None]:
    """Objects of the program answer in their own ways; none of them may end a training."""
    try:
        yield
    except Exception as error:
        logger.debug(_NOT_KEPT, exc_info=error)
