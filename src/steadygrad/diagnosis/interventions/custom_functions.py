"""Custom autograd functions run as the plain code of their forward, so that autograd differentiates it itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd import Function

from ..replay.replay_step import ReplayChange


def function_at(place: str) -> type[Function] | None:
    """The custom autograd function in whose source this place ("file:line") lies; None where there is none."""
    file, _, line = place.rpartition(":")
    pending = list(Function.__subclasses__())
    while pending:
        function = pending.pop()
        pending += function.__subclasses__()
        if _is_torchs(function):
            continue
        try:
            lines, first = inspect.getsourcelines(function)
            source = inspect.getsourcefile(function)
        except (OSError, TypeError):
            continue
        if source and Path(source).resolve() == Path(file).resolve() and first <= int(line) < first + len(lines):
            return function
    return None


def _is_torchs(function: type[Function]) -> bool:
    return function.__module__.partition(".")[0] == "torch"


class _Context:
    """What a forward is given to keep things for a backward that no one will call."""

    needs_input_grad: tuple[bool, ...] = ()
    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None: ...
    def mark_dirty(self, *tensors: Any) -> None: ...
    def mark_non_differentiable(self, *tensors: Any) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


class PlainBackward(ReplayChange):
    """One custom function loses its backward, and autograd works out its own from the ops of its forward."""

    def __init__(self, function: type[Function]) -> None:
        self.function = function

    @contextmanager
    def around(self) -> Iterator[None]:
        function, own = self.function, self.function.__dict__.get("apply")

        def plain(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            if cls.setup_context is not Function.setup_context:
                return cls.forward(*args, **kwargs)
            context = _Context()
            context.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
            return cls.forward(context, *args, **kwargs)

        function.apply = classmethod(plain)  # type: ignore[assignment]
        try:
            yield
        finally:
            if own is None:
                del function.apply
            else:
                function.apply = own  # type: ignore[method-assign]
