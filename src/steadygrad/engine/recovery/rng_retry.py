"""Whether a refused step is non-finite only because of its random numbers, and not because of its batch.

A refused step's random state is restored, so that the run goes on as if the batch had never come. But a loss_fn that
draws (a diffusion time that rounds to 1, a noise that hits a pole) then gives the next batch the numbers that broke
this one, and the next, until a healthy run is halted. So the second refusal in a row is tried with other numbers: if
the step is finite with them, its batch is good, and the run goes on from them.
"""

from __future__ import annotations

import math
import random
import sys
from contextlib import suppress

import torch

from ...detect.gradient_norms import GradientProbe, finite_gradients
from ...records import Reading
from ..fault_barrier import FaultBarrier
from ..record.run_log import RunLog
from ..state.forward_state import ForwardState
from ..state.rng import RngState, take_rng
from ..state.training_state import TrainingState
from ..step.user_step import UserStep
from ..step.window import Window
from .reruns.reached_state import reached_state_kept
from .reruns.sinks import HasEffect

_ASKED_IN_A_ROW = 3


class RngRetry:
    """Asked at refused steps; runs a step again only where one was refused just before. One per guard."""

    def __init__(
        self, program: UserStep, forward: ForwardState, state: TrainingState, log: RunLog, barrier: FaultBarrier
    ) -> None:
        self._program, self._forward, self._state = program, forward, state
        self._log, self._barrier = log, barrier
        self._last_refused = -2
        self._asked = 0

    def at_fault(self, reading: Reading, window: Window) -> RngState | None:
        """The random state to go on from, if the refused window is finite with other numbers; else None.

        Everything is as before the window when this returns. Forward, backward and a host read where it asks.
        """
        in_a_row, self._last_refused = reading.step - self._last_refused == 1, reading.step
        self._asked = self._asked if in_a_row else 0
        if not in_a_row or self._asked >= _ASKED_IN_A_ROW or not _may_be_noise(reading) or not window.can_run_again:
            return None
        self._asked += 1
        nothing: RngState | None = None
        with self._barrier("rng_retry", nothing) as answer:
            answer.value = self._try(window)
        if answer.value is not None:
            self._log.show(
                f"step {reading.step} was non-finite only with its random numbers; batch {window.key} is trained on "
                "with new ones",
                kind="rng_retry",
            )
            self._log.journal.event("random_numbers_moved_on", step=reading.step, batch_key=window.key)
        return answer.value

    def _try(self, window: Window) -> RngState | None:
        assert window.entry is not None
        self._forward.restore(window.entry)
        try:
            draw_afresh()
            fresh = take_rng()
            with suppress(HasEffect), reached_state_kept(self._program, self._state):
                return fresh if self._is_finite(window) else None
            return None
        finally:
            self._program.forget()
            self._forward.restore(window.entry)

    def _is_finite(self, window: Window) -> bool:
        for batch in window.batches:
            terms = self._program.micro(batch)
            if terms is None or not all(math.isfinite(float(value)) for value in terms.values()):
                return False
        gradients = GradientProbe(self._program.parameters).measure()
        return gradients is None or finite_gradients(gradients)


def draw_afresh() -> None:
    """Seed every global generator anew from what they would draw next: other numbers, the same ones in every run."""
    seed = int(torch.randint(2**62, ()))
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def _may_be_noise(reading: Reading) -> bool:
    numbers = (reading.loss, reading.grad_norm, *reading.terms.values(), *reading.micro_losses)
    known = reading.bad_parameters or reading.bad_state or reading.bad_buffers or reading.bad_inputs
    return not (known or reading.scale_to_blame or reading.undone) and not all(map(math.isfinite, numbers))
