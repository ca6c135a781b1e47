"""A hook of ours on a module of the user's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...records.errors import SteadyError
from .graph_capture import capturing
from .torch_private import tracing_state


def halting(failed: Callable[[Exception], Any]) -> Callable[[Exception], None]:
    """For a hook that may halt the program: that is raised, and a fault of ours goes to `failed`."""

    def raised(fault: Exception) -> None:
        if isinstance(fault, SteadyError):
            raise fault
        failed(fault)

    return raised


class NoHook:
    """Stands for the handle of a hook that could not be registered."""

    def remove(self) -> None:
        """Nothing is there."""


Handle = RemovableHandle | NoHook


def registered(register: Callable[..., RemovableHandle], hook: Callable[..., Any], **options: bool) -> Handle:
    """`register(hook, **options)`; nothing where an optimizer of the user's own has no place for it, because it does
    not call torch's `__init__`, and on a ScriptModule, which takes none."""
    try:
        return register(hook, **options)
    except (AttributeError, RuntimeError):
        return NoHook()


class QuietHook:
    """Calls `call`, and `failed` with what that raises: no failure of ours reaches the program.

    A model that is copied or saved while it is on carries a function of the standard library that does nothing, so that
    it can be loaded where steadygrad is not installed. Under a compiler, `torch.jit.trace` or the capture of a CUDA
    graph it does nothing: no break in the graph and nothing added to it.
    """

    __slots__ = ("__weakref__", "_call", "_failed")

    def __init__(self, call: Callable[..., None], failed: Callable[[Exception], None]) -> None:
        self._call, self._failed = call, failed

    def __call__(self, *args: Any) -> None:
        if torch.compiler.is_compiling() or tracing_state() is not None:
            return
        try:
            if not capturing():
                self._call(*args)
        except Exception as fault:
            self._failed(fault)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")
