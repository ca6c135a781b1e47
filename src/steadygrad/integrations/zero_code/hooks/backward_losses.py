"""What `backward` shows: the loss, where it was called, and of a bad loss on a CPU the op that made it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.optim import Optimizer

from ....detect.loop.program_frames import user_line
from ....detect.tensors.foreign_objects import getattr
from ....detect.tensors.readable_tensors import describable
from ....detect.tensors.torch_private import num_dispatch_modes, without_dispatch_modes
from ....engine.step.trained_parameters import parameters_of

_READ_EVERY = 64
_MOST = 1024
"""Losses that are kept one by one: a loop that updates its weights by hand never shows that an update was made."""
_MAX_NODES = 4096
_LOSS_SCALE = 128.0
"""A constant so large that multiplies a loss last is a loss scale of the program's own."""
_SAVED = tuple(f"_saved_{name}" for name in ("self", "other", "input", "tensor", "mat1", "mat2", "exponent"))


@dataclass(frozen=True, slots=True)
class SuspectOp:
    """An op between the model and the loss that, by what autograd kept of it, made a bad value from good ones."""

    op: str
    bad_output: bool
    inputs: str = ""


@dataclass(slots=True)
class BackwardPasses:
    """The backward passes since the last update, and the count of all. `optimizers` gives those of the program."""

    optimizers: Callable[[], Iterable[Optimizer]] = tuple
    count: int = 0
    depth: int = 0
    losses: list[Tensor] = field(default_factory=list)
    seen_by_step: bool = False
    """The losses are those of an update already made; a sibling optimizer may still want them."""
    where: tuple[str, int] = ("", 0)
    suspect: SuspectOp | None = None
    first_bad: int | None = None
    _unscaled: Tensor | None = None
    _unread: list[tuple[int, Tensor]] = field(default_factory=list)
    _of_others: weakref.WeakKeyDictionary[Optimizer, set[int]] = field(default_factory=weakref.WeakKeyDictionary)
    """For an optimizer, the places in `losses` of those that are known to have given it no gradient."""

    def scaled(self, loss: Any, result: Any) -> None:
        """A GradScaler made `result` of `loss`: it is the unscaled one that people want to see."""
        if isinstance(loss, Tensor) and isinstance(result, Tensor) and loss.numel() == 1:
            self._unscaled = loss.detach()

    def begin(self, loss: Tensor) -> None:
        """Note a loss. Host work only, but for a loss on a CPU, where looking costs nothing."""
        if self.seen_by_step:
            self.forget()
        self.count += 1
        if loss.numel() != 1 or not loss.is_floating_point():
            return
        # Of a scaled loss people want to see the unscaled one, also where something was done to it in between.
        shown, self._unscaled = self._unscaled, None
        shown = _value(loss) if shown is None else shown
        if len(self.losses) >= _MOST and (total := self.total()) is not None:
            self.losses = [total]
            self._of_others.clear()
        self.losses.append(shown)
        self.where = user_line(2)
        if shown.device.type == "cpu":
            self._look(self.count, float(shown), loss)
            return
        self._unread.append((self.count, shown))
        if len(self._unread) >= _READ_EVERY:
            self.read()

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was made: if none of its parameters has a gradient, the losses so far are those of others."""
        if self.losses and all(parameter.grad is None for parameter in parameters_of(optimizer)):
            self._of_others[optimizer] = set(range(len(self.losses)))

    def zeroed(self) -> None:
        """Gradients were cleared: what was differentiated before is not part of the next update."""
        if self.losses:
            self.forget()

    def read(self) -> None:
        """Look at the losses not looked at yet. One host read."""
        unread, self._unread = self._unread, []
        if unread and self.first_bad is None:
            values = torch.stack([loss.reshape(()).float() for _, loss in unread]).tolist()
            for (count, _), value in zip(unread, values, strict=True):
                self._look(count, value, None)

    @property
    def are_new(self) -> bool:
        """Whether there is a loss by which no update was judged."""
        return bool(self.losses) and not self.seen_by_step

    def judged(self) -> None:
        """An update was judged by these losses."""
        self.seen_by_step = True
        self._unread.clear()

    def forget(self) -> None:
        self.losses = []
        self.suspect, self.seen_by_step = None, False
        if self._of_others:
            self._of_others.clear()

    def let_go(self) -> None:
        """Keep nothing of an update that was judged alive."""
        if self.seen_by_step:
            self.forget()

    def of_others(self, optimizer: Optimizer) -> bool:
        """Whether some of the losses are known to have given this optimizer nothing."""
        return bool(self._of_others) and bool(self._of_others.get(optimizer))

    def total(self, optimizer: Optimizer | None = None) -> Tensor | None:
        """The objective whose gradient was taken since the last update: the sum over its backward passes, less those
        that are known to have given this optimizer nothing."""
        losses = self.losses
        if self._of_others and optimizer is not None and (others := self._of_others.get(optimizer)):
            losses = [loss for place, loss in enumerate(losses) if place not in others]
        if len(losses) < 2:
            return losses[0] if losses else None
        first = losses[0]
        return torch.stack([loss.reshape(()).to(first.device, torch.float32) for loss in losses]).sum()

    def _look(self, count: int, value: float, root: Tensor | None) -> None:
        if math.isfinite(value):
            return
        if self.first_bad is None:
            self.first_bad = count
        if root is not None:
            self._note_others(root)
        if root is not None and self.suspect is None:
            with _untraced():
                self.suspect = walk(root)

    def _note_others(self, bad: Tensor) -> None:
        """Whose update the last loss, a bad one, can have no part in: it is of another optimizer's parameters."""
        reached = _leaves(bad)
        if reached is None:
            return
        fed = {each: any(id(p) in reached for p in parameters_of(each)) for each in self.optimizers()}
        if any(fed.values()):
            for optimizer in (each for each, is_fed in fed.items() if not is_fed):
                self._of_others.setdefault(optimizer, set()).add(len(self.losses) - 1)


def _untraced() -> AbstractContextManager[Any]:
    """A step that is traced gives numbers where autograd kept tensors of one."""
    return without_dispatch_modes() if num_dispatch_modes() else nullcontext()


def _value(loss: Tensor) -> Tensor:
    """The loss. A product with a loss scale may overflow while the loss and all gradients are finite, so it proves
    nothing: the largest finite number stands for it, and the gradients tell. Does not sync."""
    value, node = loss.detach(), loss.grad_fn
    factor = _kept(node, "_saved_other") if node is not None and node.name() == "MulBackward0" else None
    if not isinstance(factor, Tensor) or factor.requires_grad or factor.device.type != "cpu" or factor.numel() != 1:
        return value
    largest = torch.finfo(value.dtype).max
    with _untraced():
        return value.clamp(-largest, largest) if abs(float(factor)) >= _LOSS_SCALE else value


def walk(loss: Tensor) -> SuspectOp | None:
    """From a bad loss back through autograd's graph: the first op whose kept inputs are finite and whose output is not.

    Looks only at tensors autograd keeps for backward, so it must run before the graph is freed, and finds nothing
    where an op keeps nothing. Reads the device.
    """
    pending, seen, found = [loss.grad_fn], set[Any](), []
    while pending and len(seen) < _MAX_NODES:
        node = pending.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [after for after, _ in node.next_functions]
        suspect = _suspect(node)
        if suspect is not None:
            found.append(suspect)
    # The deepest is the earliest: what stands above it only passes its bad value on.
    return found[-1] if found else None


def _leaves(loss: Tensor) -> set[int] | None:
    """The parameters that a loss is computed from, by identity; None where the graph does not show all of them: it is
    large, or a function of the program's own may hide some."""
    pending, seen, leaves = [loss.grad_fn], set[Any](), set[int]()
    while pending:
        node: Any = pending.pop()
        if node is None or node in seen:
            continue
        if len(seen) >= _MAX_NODES or isinstance(node, BackwardCFunction):
            return None
        seen.add(node)
        pending += [after for after, _ in node.next_functions]
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
    return leaves


def _suspect(node: Any) -> SuspectOp | None:
    kept = {name: _kept(node, name) for name in (*_SAVED, "_saved_result")}
    inputs = [value for name, value in kept.items() if name != "_saved_result" and isinstance(value, Tensor)]
    result = kept["_saved_result"]
    if not all(describable(value) for value in (*inputs, result) if isinstance(value, Tensor)):
        return None  # what cannot be read says nothing
    if any(not _finite(value) for value in inputs):
        return None
    op = node.name().removesuffix("Backward0").removesuffix("Backward1").lower()
    if isinstance(result, Tensor):
        return None if _finite(result) else SuspectOp(op, True, _ranges(inputs))
    made = _recompute(op, inputs)
    return SuspectOp(op, True, _ranges(inputs)) if made else None


def _kept(node: Any, name: str) -> Any:
    try:
        return getattr(node, name, None)
    except RuntimeError:
        return None  # freed, or written to since: autograd will say so itself


def _recompute(op: str, inputs: list[Tensor]) -> bool:
    """Whether an op that does not keep its output makes a bad one from the inputs it kept."""
    function = {"log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "acos": torch.acos,
                "asin": torch.asin, "atanh": torch.atanh, "acosh": torch.acosh}.get(op)  # fmt: skip
    with torch.no_grad():
        if function is not None and len(inputs) == 1:
            return not _finite(function(inputs[0].detach()))
        if op == "div" and inputs:
            return any(bool((value == 0).any()) for value in inputs[-1:])
    return False


def _finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return bool(torch.isfinite(tensor.detach()).all())


def _ranges(tensors: list[Tensor]) -> str:
    """How large the inputs were, in words."""
    parts = []
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            low, high = float(tensor.detach().min()), float(tensor.detach().max())
            parts.append(f"between {low:g} and {high:g}")
    return " and ".join(parts)
