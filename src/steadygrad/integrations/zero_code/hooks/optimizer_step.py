"""Wraps `step` of every optimizer class of a program, so that an update can be withheld without calling it.

A hook before the step could only hand the optimizer an empty stand-in for itself, which optimizers that read their own
parameter groups do not survive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ....detect.tensors.foreign_objects import getattr, isinstance
from ....detect.tensors.graph_capture import NOT_CHECKED
from ....engine.step.trained_parameters import parameters_of
from ...loops.patch_barrier import barred, uncounted
from ...loops.patching import Patches
from ..launch.import_hook import when_imported

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop


def finite(parameters: Sequence[Tensor]) -> bool:
    """The bare check that is left where the guard itself has failed."""
    return all(p.grad is None or bool(torch.isfinite(p.grad.detach().to_dense()).all()) for p in parameters)


def step_in_backward(
    watch: ProcessLoop, original: Callable[..., Any], optimizer: Optimizer, args: Any, kwargs: Any
) -> Any:
    """A step for one parameter in the middle of backward: others may be made already, so only this is refused."""
    watch.ledger.tell(
        "in_backward",
        "optimizers step inside backward, a parameter at a time: a bad gradient is refused for its own parameter, "
        "but parameters that stepped before it in the same backward have moved",
    )
    if not watch.policy.acts or finite(parameters_of(optimizer)):
        watch.ledger.in_backward += 1
        return original(*args, **kwargs)
    watch.ledger.refused_in_backward(watch.backwards.count)
    return None


def evaluation(watch: ProcessLoop, closure: Callable[[], Any]) -> Callable[[], Any]:
    """Forward and backward happen inside `step(closure)`."""

    def evaluate() -> Any:
        if watch.busy:
            return closure()
        with watch.barrier("models", None):
            watch.models.begin_window()
        loss = closure()
        if isinstance(loss, Tensor) and not watch.backwards.losses and loss.numel() == 1:
            watch.backwards.losses.append(loss.detach())
        return loss

    return evaluate


def _kinds(kind: type[Optimizer]) -> list[type[Optimizer]]:
    found: list[type[Optimizer]] = []
    below: type[Optimizer]
    for below in type.__subclasses__(kind):
        found += [below, *_kinds(below)]
    return found


class StepPatches:
    """Patches every optimizer class there is, and those that come, once each."""

    def __init__(self, watch: ProcessLoop, patches: Patches) -> None:
        self._watch, self._patches = watch, patches
        self._known: set[type] = set()
        self._before_compiled: Any = None
        for kind in _kinds(Optimizer):
            if getattr(kind.step, "hooked", False):  # made before: torch has put its own wrapper there
                self._learn(kind)
        patches.also(when_imported("torch._dynamo", self._compiler_is_here))

    def _compiler_is_here(self, dynamo: Any) -> None:
        watch = self._watch
        self._before_compiled = dynamo.disable(lambda optimizer: watch.before_compiled(optimizer))

    def learn(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""
        for kind in type(optimizer).__mro__:
            self._learn(kind)

    def _learn(self, kind: type) -> None:
        if "step" in vars(kind) and kind is not Optimizer and kind not in self._known:
            self._known.add(kind)
            self._wrap(kind)

    def _wrap(self, kind: type) -> None:
        original = vars(kind)["step"]
        if not callable(original):
            return
        watch = self._watch

        def judged(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return watch.around_step(functools.partial(call, optimizer), optimizer, args, kwargs)

        def may(optimizer: Any, closure: Any = None, **_: Any) -> bool:
            unseen = closure is not None and not closure.made  # before it ran there is nothing to see
            return unseen or not watch.policy.acts or finite(parameters_of(optimizer))

        around = barred(judged, watch.failed, may, captured=lambda: watch.ledger.tell("captured", NOT_CHECKED))

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                # Loading the compiler costs seconds, so the check is marked for it when the program has loaded it.
                if self._before_compiled is not None and not self._before_compiled(optimizer):
                    return None
                return original(optimizer, *args, **kwargs)
            return around(original, optimizer, *args, **kwargs)

        step = functools.wraps(original)(uncounted(step))
        setattr(kind, "step", step)  # noqa: B010

        def undo() -> None:
            if vars(kind).get("step") is step:
                setattr(kind, "step", original)  # noqa: B010

        self._patches.also(undo)
