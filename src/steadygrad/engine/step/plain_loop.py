"""What is left when the guard itself has failed: the plain loop, which still refuses a non-finite update.

Kept so small that there is nothing in it to break: one norm, one host read, step or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...detect.gradient_norms import Gradients, clip_exact
from ...detect.tensors.foreign_objects import isinstance
from ...records import Action, Decision, Outcome
from ..distributed.consensus import SingleRank
from ..fault_barrier import UserCodeError
from .update import AfterUpdate
from .user_step import Terms, UserStep


class PlainLoop:
    """Forward, backward, clip, check, step. Syncs with the host once a step."""

    def __init__(
        self,
        program: UserStep,
        max_grad_norm: float | None,
        followers: AfterUpdate,
        consensus: SingleRank,
        place: Callable[[], tuple[int, int]],
    ) -> None:
        self._program = program
        self._consensus = consensus
        self._place = place
        self._optimizers = program.optimizers
        self._max_norm = max_grad_norm if max_grad_norm is not None else math.inf
        self._scheduler = followers.scheduler
        self._ema_update = followers.ema_update
        self._micro = 0

    def step(self, batch: Any, step: int, terms: Terms | None = None) -> Outcome:
        """One micro-batch without any of the guard's parts. `terms` are its losses if its backward is done."""
        outcome = Outcome(step=step)
        fills = (self._micro + 1) % self._program.accumulate == 0
        tell = self._consensus.lost_word(*self._place()) if fills else None
        half_way = terms is not None
        if terms is None and self._program.answer is not None and self._consensus.size > 1:
            terms = self._backward(tell)  # the other ranks are in theirs, and another forward would be one too many
        terms = terms or self._program.micro(batch, before_backward=tell)
        applied = False
        if terms is None:
            self._consensus.needs_a_loss()
        else:
            self._micro += 1
            if self._micro % self._program.accumulate:
                outcome.accumulating = True
                return outcome
            if not self._program.unscaled or not half_way:
                self._program.unscale()
            norm = torch.nn.utils.clip_grad_norm_(self._program.parameters, self._max_norm)
            loss_finite = self._consensus.loss_is_finite(terms)  # asked always: the other ranks ask too
            applied = math.isfinite(float(norm)) and loss_finite
            if half_way and not applied:
                self._consensus.broken(RuntimeError("the step under way was not finite"))
            self._finish(applied)
        return _resolved(outcome, applied)

    def _backward(self, tell: Callable[[Terms], None] | None) -> Terms:
        """The backward of a forward that the guard made before it failed."""
        answer = self._program.answer
        try:
            terms = self._program.terms_of(answer)
        except Exception:  # that may be what failed
            terms = {"loss": (answer["loss"] if isinstance(answer, Mapping) else answer).reshape(())}
        if tell is not None:
            tell(terms)
        try:
            self._program.backward(terms)
        except UserCodeError:
            raise
        except Exception as fault:  # still broken: then all ranks stop, with the reason
            self._consensus.broken(fault)
            raise
        return {name: value.detach() for name, value in terms.items()}

    def take_over(self, gradients: Gradients | None, loss_finite: bool, outcome: Outcome) -> None:
        """Finish the step under way of a guard that stands down because another rank's has failed."""
        applied = loss_finite and (gradients is None or math.isfinite(float(gradients.total)))
        if applied and gradients is not None and self._max_norm < math.inf:
            clip_exact(gradients, self._max_norm)
        self._finish(applied)
        _resolved(outcome, applied)

    def _finish(self, applied: bool) -> None:
        if applied:
            for optimizer in self._optimizers:
                optimizer.step()
        self._program.update_scale()
        self._program.zero_grad()
        if applied and self._scheduler is not None:
            self._scheduler.step()
        if applied and self._ema_update is not None:
            self._ema_update()

    def left_out(self, step: int) -> Outcome:
        """The outcome of a step that every rank refused before one of their guards broke."""
        return _resolved(Outcome(step=step), False)

    def committed(self, step: int) -> Outcome:
        """The outcome of a step whose update had been made when the guard broke: it is not made again."""
        return _resolved(Outcome(step=step), True)


def _resolved(outcome: Outcome, applied: bool) -> Outcome:
    action = Action.PROCEED if applied else Action.SKIP
    reason = "standing down after an internal error; only finiteness is checked from here on"
    decision = Decision(step=outcome.step, actions=(action,), reason=reason)
    outcome.resolve(decision=decision, reading=None, applied=applied)
    return outcome
