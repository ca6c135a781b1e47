"""Rounds that a loop leaves out itself for a non-finite value, as far as `sg.attach(optimizer, model=...)` sees them.

Most repaired loops do one of these: `if torch.isnan(loss): continue`, or `if not torch.isfinite(norm): zero_grad();
continue`. No update is due then. The first shows at the model's next call, when the loss is still in a variable of the
loop; the second at `optimizer.zero_grad()`, when the gradients are still there. A healthy round pays a few comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...detect.loop.measured.gradient_marks import GradientMarks, Marks, spread
from ...detect.loop.program_frames import frames_of_program, variables_of
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.readable_tensors import describable

_MAX_NAMES = 256
_MAX_IN_VAIN = 16
"""So many values on a device are read, one after another, and are finite; then no further ones."""
_MARKED = 3

Report = Callable[[float, float, str], None]
"""Called with the loss, the norm of the gradients, and a sentence."""


class OpenGradients:
    """One optimizer's gradients, as the last update or the loop itself left them."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self._few = GradientMarks(spread(parameters, _MARKED))
        self._marks: Marks = self._few.take()

    def mark(self) -> None:
        self._marks = self._few.take()

    def changed(self) -> bool:
        """Whether a backward came since, and what it made is still there."""
        return self._few.any_added_to(self._marks)

    def norm(self) -> float:
        """The largest entry of all, which overflows for no finite gradient. Reads the device."""
        there = [p.grad.detach() for p in self.parameters if p.grad is not None and describable(p.grad)]
        largest = [torch.linalg.vector_norm(each, math.inf).double() for each in there if each.numel()]
        return float(torch.stack(largest).max()) if largest else 0.0


class SkippedRounds:
    """What one loop left out. It is reported when the loop shows that it went on."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._optimizers: dict[int, OpenGradients] = {}
        self._calls = 0
        self._node = -1
        """The number of the last training call in autograd's order; its loss has a higher one."""
        self._in_vain = 0
        self._dropped: float | None = None
        self._cleared = False
        """Whether gradients were cleared since the last call."""
        self._called: set[int] = set()
        """The models that were called since the last update."""
        self.updating = False

    def follow(self, key: int, parameters: Sequence[Tensor]) -> None:
        """These are an optimizer's parameters from now on."""
        self._optimizers[key] = OpenGradients(parameters)

    # -- what the loop calls

    def call_begins(self) -> bool:
        """The model is called in training. True if the round before was left out for a bad loss."""
        if not self._calls or self.updating or any(each.changed() for each in self._optimizers.values()):
            return False
        loss = next((loss for loss in self._open_losses() if self._is_bad(loss)), None)
        if loss is None:
            return False
        self._dropped, self._calls = None, 0
        value = float(loss.detach())
        self._report(value, math.nan, f"batch skipped by the program: its loss is {value}")
        return True

    def begins_anew(self, model: int, *, open_round: bool) -> bool:
        """A model is called in training: whether the program has given up the round before, if that is open."""
        left_out = open_round and self.call_begins()
        return self._abandoned(model) or left_out

    def _abandoned(self, model: int) -> bool:
        """Whether the program has given up the round before without a bad loss, as after an error that it handles: its
        call did not end, or gradients were cleared since, no backward came, and the same model is called again."""
        given_up = not self._calls or (self._cleared and model in self._called)
        if self.updating or not given_up or any(each.changed() for each in self._optimizers.values()):
            self._called.add(model)
            return False
        self._calls, self._called = 0, {model}
        return True

    def call_ended(self, output: Any) -> None:
        """Keeps nothing of it: a graph would stay alive."""
        self._calls += 1
        self._cleared = False
        if not isinstance(output, Tensor):
            output = next(iter(tensors_in(output)), None)
        self._node = _number(output) if output is not None else -1

    def clearing(self, key: int) -> None:
        """`zero_grad` is about to clear gradients: are they of a backward that no update came of?"""
        open_gradients = self._optimizers.get(key)
        if (
            open_gradients is None
            or self.updating
            or not open_gradients.changed()
            or self._spent(open_gradients.parameters[0])
        ):
            return
        norm = open_gradients.norm()
        self._in_vain = self._in_vain + 1 if math.isfinite(norm) else 0
        if not math.isfinite(norm):
            self._tell()
            self._dropped = norm

    def cleared(self, key: int) -> None:
        """After `zero_grad`."""
        if key in self._optimizers:
            self._cleared = True
            self._optimizers[key].mark()

    def settled(self, *, refused: bool) -> None:
        """An update was made or refused, or dropped by a scaler: nothing is open.

        Gradients that were cleared before a refused update were a part of it: an optimizer may ask for two passes.
        """
        if refused:
            self._dropped = None
        self._tell()
        self._calls, self._called, self.updating = 0, set(), False
        for each in self._optimizers.values():
            each.mark()

    def close(self) -> None:
        """The loop has ended: its last round may have been left out as well."""
        self.call_begins()
        for key in self._optimizers:
            self.clearing(key)
        self._tell()

    def _tell(self) -> None:
        norm, self._dropped = self._dropped, None
        if norm is not None:
            self._report(0.0, norm, f"update skipped by the program: the gradient norm is {norm}")

    # -- what that means

    def _open_losses(self) -> Iterator[Tensor]:
        """Single numbers in the program's variables that came of the model's last call."""
        for frame in frames_of_program() if self._node >= 0 else ():
            names = variables_of(frame)
            own = getattr(names.get("self"), "__dict__", None)
            for value in [*names.values(), *(own.values() if isinstance(own, dict) else ())][:_MAX_NAMES]:
                if isinstance(value, Tensor) and value.numel() == 1 and _number(value) >= self._node:
                    yield value

    def _is_bad(self, value: Tensor) -> bool:
        if self._spent(value):
            return False
        bad = not math.isfinite(float(value.detach()))
        self._in_vain = 0 if bad else self._in_vain + 1
        return bad

    def _spent(self, value: Tensor) -> bool:
        return self._in_vain >= _MAX_IN_VAIN and value.device.type != "cpu"


def _number(tensor: Tensor) -> int:
    """Of the call that made it, in autograd's order; -1 without a graph."""
    node = tensor.grad_fn
    return node._sequence_nr() if node is not None else -1
