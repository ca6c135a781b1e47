"""What becomes of an optimizer's state: whether a new optimizer lost it, and whether loading narrowed its dtype."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from ..tensors.foreign_objects import isinstance
from ..tensors.quiet_hook import QuietHook, registered

_FEW = 3
"""Updates after which state is worth something."""


@dataclass(slots=True)
class _Trainer:
    """The optimizer that last trained a parameter."""

    optimizer: weakref.ref[Optimizer]
    kind: type
    options: tuple[Any, ...]
    updates: int
    version: int
    had_state: bool
    made_anew: int


_trainers: Any = WeakTensorKeyDictionary()
"""By an optimizer's first parameter. Nothing of it is kept alive."""


class LoadedState:
    """What one optimizer was made with, and what was loaded into it. Listens until `close`."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._given: dict[str, torch.dtype] = {}
        self.loaded = self.closed = False
        self.given_zero = [rate_of(group) == 0.0 for group in optimizer.param_groups]
        """Groups whose rate was zero when they were first seen: whoever gave it may raise it by hand."""
        self._narrowed: dict[str, tuple[torch.dtype, torch.dtype]] = {}
        self._handles = [
            registered(optimizer.register_load_state_dict_pre_hook, QuietHook(self._before, self._failed)),
            registered(optimizer.register_load_state_dict_post_hook, QuietHook(self._after, self._failed)),
        ]

    def close(self) -> None:
        """Leave no hook."""
        self.closed = True
        for handle in self._handles:
            handle.remove()

    def _failed(self, _fault: Exception) -> None:
        """Then nothing is known of what was loaded."""
        self._given = {}

    def _before(self, optimizer: Optimizer, state_dict: Any) -> None:
        state = state_dict.get("state") if isinstance(state_dict, Mapping) else None
        self._given = dict(_dtypes(state if isinstance(state, Mapping) else {}))

    def _after(self, optimizer: Optimizer) -> None:
        self.loaded = True
        given, self._given = self._given, {}
        both = {key: (given[key], dtype) for key, dtype in _dtypes(optimizer.state) if key in given}
        self._narrowed = {key: pair for key, pair in both.items() if pair[0].itemsize > pair[1].itemsize}

    def narrowed(self, optimizer: Optimizer) -> tuple[str, str] | None:
        """The dtypes between which loading cast the state, where the program has not restored them since."""
        if not self._narrowed:
            return None
        now = dict(_dtypes(optimizer.state))
        still = [pair for key, pair in self._narrowed.items() if now.get(key) == pair[1]]
        return (_word(still[0][0]), _word(still[0][1])) if still else None


_loads: weakref.WeakKeyDictionary[Optimizer, LoadedState] = weakref.WeakKeyDictionary()


def watch_loads(optimizer: Optimizer) -> LoadedState:
    """What is loaded into this optimizer from now on; one record for each optimizer."""
    found = _loads.get(optimizer)
    if found is None or found.closed:
        found = _loads[optimizer] = LoadedState(optimizer)
    return found


class StateHistory:
    """One optimizer's state over time. Host only."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._loads = watch_loads(optimizer)
        self.given_zero = self._loads.given_zero
        self._first = True
        self._made_anew = 0
        self._updates = 0
        self.lost = ""
        self.surely = False
        """Whether it was lost by mistake; a new optimizer may be wanted, for another task."""
        self.narrowed: tuple[str, str] | None = None
        """The dtypes between which the state that this update used was cast."""
        self._left: dict[str, torch.dtype] = {}
        """The state of the first parameter as the last update left it."""

    def close(self) -> None:
        """Leave no hook."""
        self._loads.close()

    def before_update(self, optimizer: Optimizer) -> None:
        """At the first update: did an optimizer like this one train the same weights before, and is its state gone?"""
        self.narrowed = self._loads.narrowed(optimizer) or self._cast_since(optimizer)
        if not self._first:
            return
        self._first = False
        parameter = _first_parameter(optimizer)
        before: _Trainer | None = _trainers.get(parameter) if parameter is not None else None
        if before is None or before.optimizer() is optimizer or before.updates < _FEW or not before.had_state:
            return
        if before.kind is not type(optimizer) or before.options != _options(optimizer) or _has_state(optimizer):
            return
        if parameter is None or parameter._version != before.version:
            return  # other weights: a training of its own
        self._made_anew = before.made_anew + 1
        self.surely = self._loads.loaded
        if self.surely:
            self.lost = f"a state without moments was loaded after {before.updates} updates"
        elif self._made_anew > 1:
            self.lost = (
                f"a new optimizer was made {self._made_anew} times, the last time after {before.updates} updates"
            )

    def _cast_since(self, optimizer: Optimizer) -> tuple[str, str] | None:
        """The dtypes between which the program cast the state to that of its parameter since the last update."""
        parameter = _first_parameter(optimizer)
        if parameter is None or not self._left:
            return None
        now = _dtypes_of(optimizer, parameter)
        both = [(before, now[key]) for key, before in self._left.items() if key in now]
        cast = [pair for pair in both if pair[0].itemsize > pair[1].itemsize and pair[1] == parameter.dtype]
        return (_word(cast[0][0]), _word(cast[0][1])) if cast else None

    def after_update(self, optimizer: Optimizer) -> None:
        self._updates += 1
        parameter = _first_parameter(optimizer)
        if parameter is None:
            return
        # Where the weights are in float32 or wider there is nothing narrower to cast to.
        self._left = _dtypes_of(optimizer, parameter) if parameter.dtype.itemsize < 4 else {}
        known: _Trainer | None = _trainers.get(parameter)
        if known is not None and known.optimizer() is optimizer:
            known.updates, known.version = self._updates, parameter._version
            if self._updates == _FEW:
                known.had_state = _has_state(optimizer)
            return
        _trainers[parameter] = _Trainer(
            weakref.ref(optimizer), type(optimizer), _options(optimizer), self._updates, parameter._version,
            _has_state(optimizer), self._made_anew,
        )  # fmt: skip


def rate_of(group: Mapping[str, Any]) -> float:
    """A rate kept in a tensor on a device is taken for 1.0 rather than waited for."""
    rate = group.get("lr", 1.0)
    if isinstance(rate, Tensor):
        return float(rate) if rate.device.type == "cpu" else 1.0
    return float(rate) if isinstance(rate, int | float) else 1.0


def _first_parameter(optimizer: Optimizer) -> Tensor | None:
    return next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)


def _has_state(optimizer: Optimizer) -> bool:
    """Whether the optimizer remembers anything of earlier gradients."""
    parameter = _first_parameter(optimizer)
    state = optimizer.state.get(parameter, {}) if parameter is not None else {}
    return any(isinstance(value, Tensor) and value.dim() > 0 for value in state.values())


def _options(optimizer: Optimizer) -> tuple[Any, ...]:
    """The numbers of its groups, less the learning rate that a schedule may have set."""
    numbers = (
        (key, value)
        for group in optimizer.param_groups
        for key, value in sorted(group.items())
        if key not in ("params", "lr", "initial_lr") and isinstance(value, bool | int | float | tuple)
    )
    return tuple(numbers)


def _dtypes(state: Mapping[Any, Any]) -> Iterator[tuple[str, torch.dtype]]:
    """The dtype of every kind of floating-point state, as the first parameter that has it shows it."""
    seen: set[str] = set()
    for of_parameter in state.values():
        for key, value in of_parameter.items() if isinstance(of_parameter, Mapping) else ():
            if isinstance(value, Tensor) and value.dim() and value.is_floating_point() and key not in seen:
                seen.add(key)
                yield str(key), value.dtype


def _dtypes_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, torch.dtype]:
    return dict(_dtypes({parameter: state})) if (state := optimizer.state.get(parameter)) else {}


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
