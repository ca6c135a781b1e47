"""What a loop does itself about a non-finite value: it leaves a batch out, drops an update, or scrubs its gradients.

Most repaired loops do one of these: `if torch.isnan(loss): continue`, `if not torch.isfinite(norm): zero_grad();
continue`, `p.grad.nan_to_num_()`. No backward, no update and no bad gradient comes of it, so nothing is there to be
refused. It is seen at the next point where the loop shows that it went on: at the model's call of the next round, at
`zero_grad`, at an update, or at the end of the program. What the program computed is still in its variables then; no
method of tensors is replaced, and a healthy round pays a few comparisons on the host and never waits for a device.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ....detect.loop.program_frames import variables_of
from ....detect.tensors.foreign_objects import getattr
from ....detect.tensors.readable_tensors import why_not_read
from ...loops.patching import Patches
from ..rerun.loop_lines import LoopLines
from .call_log import Call
from .loader_batches import LoaderBatches

_MAX_FRAMES = 4
_MAX_NAMES = 256
_MAX_QUICK_READS = 16
_MAX_WAITING = 64
_MAX_LOSSES = 1024
_MAX_IN_VAIN = 3
"""So many abandoned rounds without a loss in a variable are run again, one after another, and show nothing bad."""
LOSS, NORM, SCRUBBED = "loss", "norm", "scrubbed"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A batch or an update that the program itself left out, or gradients that it scrubbed, for a non-finite value.

    `kind` is "loss", "norm" or "scrubbed". `can_rerun`: the step's lines are in `LoopLines.loop_passes`, so it can
    be diagnosed as a refused step is; weights and optimizer have not changed since. `place` is where the model was
    called.
    """

    kind: str
    loss: float | None
    grad_norm: float | None
    place: tuple[str, int]
    batch_key: str | None
    calls: tuple[Call, ...] = ()
    can_rerun: bool = False
    error: str = ""
    """The name of the error by which the program ended there, if it did."""
    raised: str = ""
    """The name of the error that the program raised there and handled itself, if it did."""

    def __str__(self) -> str:
        if self.error:
            return f"the program ended with {self.error} after a loss of {self.loss}"
        if self.raised:
            return f"batch skipped by the program: it raised {self.raised} about a value that is not finite"
        if self.kind == LOSS:
            return f"batch skipped by the program: its loss is {self.loss}"
        if self.kind == NORM:
            return f"update skipped by the program: the gradient norm is {self.grad_norm}"
        return "non-finite gradients were replaced by the program before the update"


class LoopEvents:
    """Listens to one loop. `on_skipped(event)` is called at the moment at which the loop shows that it went on."""

    def __init__(
        self,
        slices: LoopLines,
        batches: LoaderBatches,
        calls: Callable[[], list[Call]],
        on_skipped: Callable[[Skipped], None],
        away: Callable[[], bool] = lambda: False,
        why_left_out: Callable[[], str | None] = lambda: None,
    ) -> None:
        """While `away()` is true what happens is not the program's doing: we run its code ourselves. `why_left_out()`
        runs the lines of an abandoned round again: the name of the error that they raise about a non-finite value, ""
        if their loss is not finite, else None."""
        self._away, self._why_left_out, self._in_vain = away, why_left_out, 0
        self._slices, self._batches, self._calls, self._on_skipped = slices, batches, calls, on_skipped
        self._handed: int | None = None
        self._last: weakref.ref[Tensor] | None = None
        self._losses: deque[Tensor] = deque(maxlen=_MAX_LOSSES)
        self._norm: Tensor | None = None
        self._scrubbed: list[Tensor] = []
        self._quick_reads = 0
        self._waiting: list[tuple[Tensor, Skipped]] = []
        self._error = ""
        self.skipped = 0

    # -- what the loop calls

    def listen(self, patches: Patches) -> None:
        """Hear of gradients that are scrubbed. Only functions that a healthy loop does not call are patched."""

        def scrub(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, Tensor) and not torch.compiler.is_compiling() and not self._away():
                self.scrubbing(tensor)
            return original(tensor, *args, **kwargs)

        for owner, name in ((Tensor, "nan_to_num_"), (Tensor, "nan_to_num"), (torch, "nan_to_num")):
            patches.around(owner, name, scrub)
        patches.around(torch, "nan_to_num_", scrub)

    def called(self, call: Call | None = None) -> bool:
        """A model is called in training. True if a round of the loop ended before this call without a backward: the
        call begins a new window, and what the abandoned forward moved is the program's own business.

        Call it before the state at the window's beginning is taken and before `LoopLines.called`."""
        handed, self._handed = self._handed, self._batches.handed
        if not self._slices.is_open:
            return False
        if (handed is None or handed == self._batches.handed) and not self._slices.next_round():
            return False  # a further call of the same round
        self._abandoned()
        return True

    def backward_begins(self, loss: Tensor) -> None:
        """A loss is differentiated: it was not skipped. Host work only."""
        self._last = weakref.ref(loss)
        if loss.numel() == 1:
            self._losses.append(loss.detach())

    def clipped(self, norm: Any) -> None:
        """Gradients were clipped by this norm, which may be a tensor on a device."""
        if isinstance(norm, Tensor) and norm.numel() == 1:
            self._norm = norm.detach()

    def scrubbing(self, tensor: Tensor) -> None:
        """The non-finite values of a tensor are about to be replaced. Only gradients matter: they have no graph and
        came since the last backward. Does not wait for a device."""
        is_gradient = bool(self._losses) and tensor.grad_fn is None and tensor.is_floating_point()
        if is_gradient and len(self._scrubbed) < _MAX_WAITING:
            self._scrubbed.append(torch.isfinite(tensor.detach()).all())

    def zeroed(self) -> None:
        """Gradients are cleared. If a backward came and no update, the loop drops the update."""
        if self._losses and not self._slices.is_open:
            self._dropped()

    def left_behind(self) -> None:
        """An update is made, and some of the losses since the last one had no part in it: was one of them bad?"""
        bad = next((loss for loss in self._losses if self._is_bad(loss)), None)
        if bad is not None:
            self._report(self._event(LOSS, loss=_value(bad)), can_rerun=False)

    def stepped(self) -> None:
        """An update was made or refused. Scrubbed gradients are reported here."""
        scrubbed, self._scrubbed = self._scrubbed, []
        if scrubbed:
            self._tell(torch.stack([good.reshape(()).cpu() for good in scrubbed]).all(), self._event(SCRUBBED))
        self._losses.clear()
        self._norm = None
        self.read()

    def finished(self, error: BaseException | None = None) -> None:
        """The program ends, perhaps by an error: its last round may have been left out as well."""
        self._error = type(error).__name__ if error is not None else ""
        if self._slices.is_open:
            self._abandoned()
        elif self._losses:
            self._dropped()
        self.read()

    def read(self) -> None:
        """Look at values whose reading was put off. Reads the device once, if anything waits."""
        waiting, self._waiting = self._waiting, []
        for value, event in waiting:
            self._judge(value, event)

    # -- what that means

    def _abandoned(self) -> None:
        """A model was called, and the loop went on without a backward: was its loss bad?"""
        losses = list(self._open_losses())
        bad = next((loss for loss in losses if self._is_bad(loss)), None)
        if bad is not None:
            event = self._event(LOSS, loss=_value(bad))
            self._report(event, can_rerun=self._slices.skipped(bad))
        elif self._error:
            return  # whoever explains the error needs this round
        elif not losses and self._in_vain < _MAX_IN_VAIN and self._slices.handles_errors:
            self._ask_lines()
        self._slices.forget()
        self._losses.clear()
        self._norm, self._scrubbed = None, []

    def _ask_lines(self) -> None:
        """The loss of an abandoned round is in no variable: the program may have raised about it, and gone on.

        Its lines are run again only where it handles errors: other rounds without a backward are what it wants."""
        raised = self._why_left_out()
        self._in_vain = self._in_vain + 1 if raised is None else 0
        if raised is not None:
            event = replace(self._event(LOSS, loss=math.nan), raised=raised)
            self._report(event, can_rerun=self._slices.skipped(torch.tensor(math.nan)))

    def _dropped(self) -> None:
        """Backward came and no update: was the loss or the norm bad?"""
        norm, losses = self._norm, list(self._losses)
        self._losses.clear()
        self._norm, self._scrubbed = None, []
        bad = next((loss for loss in losses if self._is_bad(loss)), None)
        if bad is not None or (norm is not None and self._is_bad(norm)):
            loss = _value(bad if bad is not None else losses[-1])
            event = self._event(NORM if bad is None else LOSS, loss=loss, grad_norm=_value(norm))
            can_rerun = bool(self._slices.loop_passes) and len(self._slices.loop_passes) == len(self._slices.reached)
            self._report(event, can_rerun=can_rerun)

    def _open_losses(self) -> Iterator[Tensor]:
        """Single numbers with a graph, in the variables of the functions that called the model; those that backward was
        called on are not open. Where a function returned, its variables are as they were."""
        used = self._last() if self._last is not None else None
        for frame in self._slices.open_frames()[:_MAX_FRAMES]:
            for value in reversed(list(_values(frame))[:_MAX_NAMES]):
                if value is used or why_not_read(value) is not None:
                    continue
                if value.numel() == 1 and value.grad_fn is not None:
                    yield value

    def _is_bad(self, value: Tensor) -> bool:
        """Reads the device. A loop that skips by a value has waited for that value itself, so it is there already; a
        loop that leaves many healthy rounds is read no further here."""
        if value.device.type != "cpu":
            if self._quick_reads >= _MAX_QUICK_READS:
                return False
            self._quick_reads += 1
        bad = not math.isfinite(float(value.detach()))
        if bad:
            self._quick_reads = 0
        return bad

    def _event(self, kind: str, *, loss: float | None = None, grad_norm: float | None = None) -> Skipped:
        calls = tuple(self._calls())
        key = self._batches.name([(call.args, call.kwargs) for call in calls]) if calls else None
        place = calls[-1].caller if calls else ("", 0)
        return Skipped(kind, loss, grad_norm, place, key, calls, error=self._error)

    def _tell(self, good: Tensor, event: Skipped) -> None:
        if good.device.type == "cpu":
            self._judge(good, event)
        else:
            self._waiting.append((good, event))

    def _judge(self, good: Tensor, event: Skipped) -> None:
        if not bool(good):
            self._report(event, can_rerun=False)

    def _report(self, event: Skipped, *, can_rerun: bool) -> None:
        self.skipped += 1
        self._on_skipped(replace(event, can_rerun=can_rerun))


def _values(frame: FrameType) -> Iterator[Any]:
    """The variables of a function, and the attributes of what it calls self."""
    names = variables_of(frame)
    own = names.get("self")
    if own is not None and isinstance(getattr(own, "__dict__", None), dict):
        yield from list(vars(own).values())
    yield from list(names.values())


def _value(number: Tensor | None) -> float | None:
    return float(number.detach()) if number is not None else None
