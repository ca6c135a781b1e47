"""What a loss function and its model can reach besides weights and buffers, kept while a step is run again.

Programs count, collect and draw numbers inside their loss and their model: a list of losses, a queue of features, a
generator for noise. Whatever runs a step again, to find a cause or to try a rate, ends with all of that as it was.
"""

from __future__ import annotations

import functools
import logging
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ....detect.tensors.readable_tensors import why_not_read
from ...early_checks.held_state import restore_values
from ...state.training_state import TrainingState
from ...step.user_step import UserStep
from ..preserved_attributes import content_of_array, is_array
from .user_state import UserState, is_users

logger = logging.getLogger("steadygrad")
_FRAMEWORKS = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "trl", "datasets", "queue",
)  # fmt: skip
"""A step that is run again leaves their own objects alone, or they are restored by the loop that knows them."""
_SMALL, _ALL, _MOST = 256 << 10, 256 << 20, 1 << 30
"""Bytes: tensors that are taken for written to; all together that are copied whatever they are; and the most."""
_OFTEN = 8
_MISSING = object()
_NOT_KEPT = "an object of the program could not be kept as it was"


class ReachedState(UserState):
    """What some functions, modules and objects lead to, as it is now: lists, dictionaries, objects, generators,
    tensors. Of the globals of a file only those that the functions name. `own` are tensors restored elsewhere."""

    def __init__(self, roots: Iterable[Any], own: set[int]) -> None:
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
        for undo in undos:
            try:
                undo()
            except Exception as error:
                logger.debug(_NOT_KEPT, exc_info=error)
        for tensor, version, values in tensors:
            with _logged():
                restore_values(tensor, version, values.to(tensor.device))

    def _note_attributes(self, value: Any, waiting: deque[Any]) -> None:
        super()._note_attributes(value, waiting)
        waiting.append(type(value))

    def _note(self, value: Any, waiting: deque[Any]) -> None:
        if isinstance(value, Tensor):
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

    def _note_numpy(self, value: Any) -> None:
        if not is_array(value):
            super()._note_numpy(value)
        elif value.flags.writeable:
            self._in_arrays += value.nbytes
            if self._in_arrays <= _ALL:
                self._undo.append(content_of_array(value))

    def _note_module(self, value: nn.Module, waiting: deque[Any]) -> None:
        super()._note_module(value, waiting)
        self._of_modules.append(self._undo.pop())
        waiting.extend((*value._parameters.values(), *value._buffers.values(), type(value)))

    def _note_function(self, value: types.FunctionType, waiting: deque[Any]) -> None:
        if not is_users(value.__code__.co_filename):
            return
        for cell in value.__closure__ or ():
            self._note_cell(cell, waiting)
        waiting.extend((value.__dict__, value.__defaults__, value.__kwdefaults__))
        self._note_named(value.__globals__, set(_names_in(value.__code__)), waiting)

    def _note_named(self, names: dict[str, Any], wanted: set[str], waiting: deque[Any]) -> None:
        known = self._names.setdefault(id(names), {})
        for name in wanted - known.keys():
            known[name] = before = names.get(name, _MISSING)
            if before is not _MISSING:
                waiting.append(before)
            self._undo.append(functools.partial(_rebind, names, name, before))


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


def reached_by(program: UserStep, live: Mapping[str, Any]) -> ReachedState:
    """What a step's own code reaches; `live` names the tensors that are restored with the training state."""
    own = {id(tensor) for tensor in (*program.model.parameters(), *program.model.buffers())}
    own |= {id(tensor) for tensor in (*live["parameters"].values(), *live["buffers"].values())}
    return ReachedState([program.loss_fn, program.model, *program.beside], own)


@contextmanager
def reached_objects_kept(roots: Iterable[Any]) -> Iterator[None]:
    """The same for what some objects reach, of which weights and buffers are restored by whoever runs them again."""
    modules = [root for root in roots if isinstance(root, nn.Module)]
    own = {id(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
    reached: ReachedState | None = None
    with _logged():
        reached = ReachedState(roots, own)
    try:
        yield
    finally:
        if reached is not None:
            reached.restore()


@contextmanager
def reached_state_kept(program: UserStep, state: TrainingState) -> Iterator[None]:
    """Around anything that runs a step again: all that its code reaches is afterwards as before."""
    reached: ReachedState | None = None
    with _logged():
        reached = reached_by(program, state.live())
    outer = program.restore_reached
    program.restore_reached = reached.restore_between if reached is not None else outer
    try:
        yield
    finally:
        program.restore_reached = outer
        if reached is not None:
            reached.restore()


@contextmanager
def _logged() -> Iterator[None]:
    """Objects of the program answer in their own ways; none of them may end a training."""
    try:
        yield
    except Exception as error:
        logger.debug(_NOT_KEPT, exc_info=error)
