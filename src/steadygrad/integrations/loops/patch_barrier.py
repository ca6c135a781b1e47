"""The fault barrier around a function of the program that ours stands before (see `engine.fault_barrier` for the
others).

Whatever fails in our function, the original is called exactly once, with the arguments that the program gave it, and
what it raises or returns reaches the program untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from torch.compiler import is_compiling
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.graph_capture import capturing
from ...records.errors import SteadyError

Failed = Callable[[Exception], Any]
_UNCOUNTED = str(Path(__file__).resolve().parents[2] / "importlib_bootstrap")
"""The folder of the file that the frames of a patch name. `warnings.warn(stacklevel=...)` does not count the frames of
a file whose name holds "importlib" and "_bootstrap", so a warning of torch points at the line of the program that it is
meant for. It lies inside our package, so everything that leaves our frames out leaves these out too."""


def uncounted(function: Callable[..., Any], file: str = "patching.py") -> Callable[..., Any]:
    """The same function or method with frames that are not counted where Python looks for the caller of a warning."""
    if isinstance(function, MethodType):
        return MethodType(uncounted(function.__func__, file), function.__self__)
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_filename=f"{_UNCOUNTED}/{file}")
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    return copy


class Withheld(BaseException):
    """Leaves `optimizer.step(closure)` from inside the closure, before anything was updated."""

    def __init__(self, loss: Any) -> None:
        super().__init__("the update is withheld")
        self.loss = loss


class _Once:
    """A call of the program's own: whether it was made, and what came of it."""

    __slots__ = ("call", "error", "made", "repeats", "result")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.made, self.result = call, False, None
        self.error: BaseException | None = None
        self.repeats = False
        """Whether the next call is answered with the result of the last."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.repeats:
            self.repeats = False
            return self.result
        self.made = True
        try:
            self.result = self.call(*args, **kwargs)
        except Withheld:
            raise  # ours, on its way through the program's
        except BaseException as error:
            self.error = error
            raise
        return self.result


_Once.__call__ = uncounted(_Once.__call__, "barrier.py")  # type: ignore[method-assign]


def barred(
    around: Callable[..., Any], failed: Failed | None = None, may: Callable[..., bool] | None = None, *,
    listed: bool = False, captured: Callable[[], Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """`around(original, ...)` such that a fault of ours goes to `failed`, and `original` is called exactly once.

    While the program records a CUDA graph only `original` is called, and `captured()` is told.

    `may` makes it the barrier of an update: where ours failed before the update was made, it is made if `may(...)` says
    so, and a closure that was evaluated is not evaluated again for it. With `listed` the first argument is an iterable
    that both read, so a generator is given to them as a list.
    """
    around, failed = uncounted(around), failed or report

    def patch(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return around(original, *args, **kwargs)
        try:
            only = capturing()
            if only and captured is not None:
                captured()
        except Exception as fault:
            only = False
            failed(fault)
        if only:
            return original(*args, **kwargs)
        calls = [call := _Once(original)]
        errors: list[BaseException] = []
        if listed and args and issubclass(type(args[0]), Iterator) and (items := list(args[0])):
            args = (items, *args[1:])
        if may is not None:
            args = tuple([_marked(value, calls) for value in args])
            kwargs = {name: _marked(value, calls) for name, value in kwargs.items()} if kwargs else kwargs
        try:
            return around(call, *args, **kwargs)
        except Exception as fault:
            errors += [each.error for each in calls if each.error is not None]
            if isinstance(fault, SteadyError) or any(fault is error for error in errors):
                raise
            if not any(getattr(fault, "original", fault) is error for error in errors):
                failed(fault)
            if errors:  # ours failed while theirs was on its way
                raise errors[0] from errors[0].__cause__
        finally:  # an error knows this frame: where this frame knows it too, what was called with stays in memory
            errors.clear()
            for each in calls:
                each.error = None
        if call.made:
            return call.result
        if may is not None and not may(*args, **kwargs):
            return None
        for each in calls:
            each.repeats = each.made
        return original(*args, **kwargs)

    return uncounted(patch, "barrier.py")


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure among the arguments of `optimizer.step`; an optimizer of the user's own may take something else."""
    found = kwargs.get("closure", args[0] if args else None)
    return found if callable(found) else None


def _marked(value: Any, calls: list[_Once]) -> Any:
    """A closure among the arguments of an update, as a call of the program's own."""
    if not callable(value) or isinstance(value, Optimizer):
        return value
    calls.append(_Once(value))
    return calls[-1]


def report(fault: Exception) -> None:
    """Where no guard is there to record it."""
    logging.getLogger("steadygrad").error("internal error of steadygrad (%s); training goes on", fault)


def undo_all(steps: list[Callable[[], Any]], failed: Failed | None = None) -> None:
    """Take each of these steps, the last one first; one that fails does not keep the others from being taken."""
    while steps:
        try:
            steps.pop()()
        except Exception as fault:
            (failed or report)(fault)
