"""A hook of ours on a module of the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...records.errors import SteadyError
from .torch_private import tracing_state


def raise_halt(fault: Exception) -> None:
    """For a hook that may halt the program: that is raised, and a fault of ours is not."""
    if isinstance(fault, SteadyError):
        raise fault
    logging.getLogger("steadygrad").error("internal error of steadygrad (%s); training goes on", fault)


class NoHook:
    """Stands for the handle of a hook that could not be registered."""

    def remove(self) -> None:
        """Nothing is there."""


def registered(register: Callable[[Any], RemovableHandle], hook: Callable[..., Any]) -> RemovableHandle | NoHook:
    """`register(hook)`; nothing where an optimizer of the user's own has no place for it, because it does not call
    torch's `__init__`."""
    try:
        return register(hook)
    except AttributeError:
        return NoHook()


class QuietHook:
    """Calls `call`, and `failed` with what that raises: no failure of ours reaches the program.

    A model that is copied or saved while it is on carries a function of the standard library that does nothing, so that
    it can be loaded where steadygrad is not installed. Under a compiler or `torch.jit.trace` it does nothing: no break
    in the graph and nothing added to it.
    """

    __slots__ = ("__weakref__", "_call", "_failed")

    def __init__(self, call: Callable[..., None], failed: Callable[[Exception], None]) -> None:
        self._call, self._failed = call, failed

    def __call__(self, *args: Any) -> None:
        if torch.compiler.is_compiling() or tracing_state() is not None:
            return
        try:
            self._call(*args)
        except Exception as fault:
            self._failed(fault)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")
