"""Batches that the program leaves out by itself: where a non-finite value is the reason, that is an incident.

`loss_fn` returns None, or a loop goes on without a backward. No update comes of it, so nothing is there to be refused.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import named_tensors_in
from ...detect.tensors.quiet_hook import QuietHook, registered
from ...detect.tensors.readable_tensors import describable
from ...records import Decision, Outcome, Reading
from ...records.rerun_flag import rerun, rerunning
from ..early_checks.held_state import HeldState
from ..early_checks.repeatable_call import why_not_call_again
from ..engine import Step
from ..fault_barrier import UserCodeError
from ..state.rng import put_rng, take_rng
from ..state.training_state import non_finite
from ..step.numerics_findings import muted
from ..step.window import Window

if TYPE_CHECKING:
    from ..owned_loop import OwnedLoop
    from ..state.forward_state import Entry

_MOST_LOOKS = 100
_MOST_PARTS = 8


class LoopSkips:
    """What one loop left out. Looks at the first hundred such batches; reads the device then.

    The program's function is called again only where its code shows that no one would notice. Elsewhere, from the first
    such batch on, what the model makes of each batch is watched.
    """

    def __init__(self, loop: OwnedLoop) -> None:
        self._loop, self._looks = loop, 0
        self._watched: _Watched | None = None
        self._repeats: bool | None = None

    def release(self) -> None:
        """Leave no hook."""
        if self._watched is not None:
            self._watched.close()
        self._looks = _MOST_LOOKS

    def by_loss_fn(self, batch: Any, key: str, entry: Entry) -> Outcome:
        """`loss_fn` returned None for this batch: leave no trace of it, and see what the model made of it."""
        loop = self._loop
        loop.forward.notice()
        loop.parts.checker.after_forward(loop.step, loop.forward)
        loop.forward.restore(entry)
        self.note(self.run_again(batch, entry, entry), key, batch)
        outcome = Outcome(step=loop.step)
        decision = Decision(step=loop.step, reason="loss_fn returned None")
        outcome.resolve(decision=decision, reading=None, applied=False)
        return outcome

    def run_again(self, batch: Any, before: Entry, after: Entry) -> list[Tensor]:
        """What the outermost modules make of this batch, each as a number that is finite if all of it is; nothing where
        that is not known.

        Begins with the random state of `before` and ends in the state `after`.
        """
        loop, seen = self._loop, _Outermost()
        if self._looks >= _MOST_LOOKS:
            return []
        with loop.barrier("own_skips", None):
            held = HeldState(loop.program.model)
            if not self._may_repeat(held):
                return self._made_at_first(before)
            now = take_rng()
            hooks = [register_module_forward_pre_hook(seen.enter), register_module_forward_hook(seen.leave)]
            try:
                put_rng(before.rng)
                with contextlib.suppress(UserCodeError), muted(), rerun(), torch.no_grad(), held.preserved():
                    loop.program.forward(batch)
            finally:
                for hook in hooks:
                    hook.remove()
                put_rng(now)
                loop.forward.restore(after)
        return seen.made

    def _may_repeat(self, held: HeldState) -> bool:
        if self._repeats is None:
            program = self._loop.program
            self._repeats = why_not_call_again(program.loss_fn, program.model, held) is None
        return self._repeats and held.unknown is None

    def _made_at_first(self, before: Entry) -> list[Tensor]:
        if self._watched is None and not is_compiled(self._loop.program.model):  # a hook would compile it anew
            self._watched = _Watched(self._loop)
        return self._watched.of(before) if self._watched is not None else []

    def note(self, made: Any, key: str, batch: Any = None) -> None:
        """A batch was left out; `made` is its loss, or what the model made of it."""
        loop, self._looks = self._loop, self._looks + 1
        if self._looks > _MOST_LOOKS:
            self.release()
            return
        with loop.barrier("own_skips", None):
            if not is_bad(made):
                return
            bad_inputs = tuple(name or "batch" for name in non_finite(_readable(batch)))
            loss = float(made) if isinstance(made, Tensor) and made.numel() == 1 else math.nan
            reading = Reading(
                step=loop.step, loss=loss, grad_norm=math.nan, batch_key=key, refused=True, bad_inputs=bad_inputs
            )
            what = "its loss" if isinstance(made, Tensor) and made.numel() == 1 else "what the model made of it"
            step = Step(loop.step, Window(), Outcome(step=loop.step))
            loop.engine.record_skip(step, reading, f"batch skipped by the program: {what} is not finite")


def is_bad(made: Any) -> bool:
    """Whether any number of what a model made is not finite. One host read."""
    return bool(non_finite(_readable(made)))


class _Outermost:
    """Hooks on every module: what a call that no other module makes returns."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []
        self._depth = 0

    def enter(self, *_: Any) -> None:
        self._depth += 1

    def leave(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.made += [(tensor * 0).sum() for _, tensor in _readable(output)]


class _Watched:
    """Hooks on the model and its parts: whether what they made in the step under way is finite. Does not sync."""

    def __init__(self, loop: OwnedLoop) -> None:
        self._loop = weakref.ref(loop)
        self._entry: Entry | None = None
        self._made: list[Tensor] = []
        model, hook = loop.program.model, QuietHook(self._returned, self._failed)
        self._handles = [
            registered(each.register_forward_hook, hook) for each in (model, *list(model.children())[:_MOST_PARTS])
        ]

    def of(self, entry: Entry) -> list[Tensor]:
        """What was made since this entry."""
        return self._made if entry is self._entry else []

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._made, self._entry = [], None

    def _returned(self, _model: Any, _inputs: Any, output: Any) -> None:
        loop = self._loop()
        if loop is None or rerunning():
            return
        if loop.entered is not self._entry:
            self._made, self._entry = [], loop.entered
        sizes = [torch.linalg.vector_norm(tensor, math.inf) for _, tensor in _readable(output)[:_MOST_PARTS]]
        self._made = [*self._made, *sizes][-4 * _MOST_PARTS :]

    def _failed(self, fault: Exception) -> None:
        self.close()
        if (loop := self._loop()) is not None:
            loop.barrier.note("own_skips", fault)


def _readable(value: Any) -> list[tuple[str, Tensor]]:
    return [(name, t.detach()) for name, t in named_tensors_in(value) if describable(t) and t.is_floating_point()]
