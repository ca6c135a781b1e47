"""When a diagnosis is asked for, and what becomes of it: of a refused step, of an exception, of a silent problem.

The diagnosis itself is elsewhere and is given as `Diagnostician`. Each request ends as if nothing had happened to the
training; what it could not find out is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ...detect.refusal_rule import must_refuse
from ...records import Decision, Diagnosis, Finding, Reading
from ..distributed.collectives import FailedForAll
from ..state.earlier_steps import EarlierSteps
from ..step.numerics_findings import is_fatal, muted
from ..step.window import Window

if TYPE_CHECKING:
    from ..config import GuardConfig
    from ..owned_loop import OwnedLoop

ENOUGH_STEPS = 3
"""Good steps to look at before a pattern can be called one; what the set-up showed waits for them."""
MOST = 3
"""Diagnoses of silent problems in a run; past that, findings stay findings."""
MOST_CRASHES = 3
"""Exceptions of the program that are explained in a run."""


class Diagnostician(Protocol):
    """What a training loop asks of the diagnosis."""

    capsule: str
    max_grad_norm: float | None

    def keep_capsule(self, window: Window, findings: Sequence[Finding]) -> None: ...

    def examine(
        self,
        window: Window,
        step: int,
        findings: tuple[Finding, ...],
        others: Sequence[Sequence[Any]],
        *,
        depth: str,
        past: EarlierSteps | None = None,
    ) -> Diagnosis: ...

    def explain(self, window: Window, step: int, error: BaseException, *, depth: str) -> Diagnosis | None: ...

    def look_into(
        self,
        findings: Sequence[Finding],
        steps: Sequence[Sequence[Any]],
        step: int,
        *,
        depth: str,
        past: EarlierSteps | None,
    ) -> tuple[Diagnosis, tuple[Finding, ...]] | None: ...


class DiagnosisRequests:
    """Asks for the diagnoses of one training loop."""

    def __init__(self, loop: OwnedLoop, diagnostician: Diagnostician, config: GuardConfig) -> None:
        self._loop, self._diagnostician, self._config = loop, diagnostician, config
        self._depth = {"auto": "full", "origin": "origin"}.get(config.diagnose)
        self._asked = self._crashes = 0

    # -- a refused step

    def of_refusal(self, window: Window, reading: Reading, decision: Decision, *, together: bool) -> None:
        """While the weights are still those from before the step. `together`: every rank asks now."""
        loop, log = self._loop, self._loop.log
        possible = window.can_run_again and len(window) > 0
        if possible and log.capsule_due(self._diagnostician.capsule, reading):
            with loop.barrier("diagnosis", None):
                self._diagnostician.keep_capsule(window, decision.findings)
        depth = None
        # Where something fatal was posted and the step is fine, generation went wrong, and the step cannot show how.
        if possible and (must_refuse(reading) or not is_fatal(reading.posted)):
            depth = log.diagnosis_due(self._config.diagnose, caught=reading.undone)
        if loop.consensus.size > 1:
            if together and loop.consensus.all("diagnosis", depth is not None) and depth is not None:
                self._examine_together(window, reading, decision, depth)
        elif depth is not None:
            with loop.barrier("diagnosis", None):
                self._examine(window, reading, decision, depth)

    def _examine_together(self, window: Window, reading: Reading, decision: Decision, depth: str) -> None:
        """A rank that fails here must not leave the others waiting: its whole guard stands down, and theirs."""
        try:
            self._examine(window, reading, decision, depth)
        except FailedForAll as fault:
            self._loop.barrier.note("diagnosis", fault)

    def _examine(self, window: Window, reading: Reading, decision: Decision, depth: str) -> None:
        loop = self._loop
        with muted():
            others = loop.recovery.recent_good(window)
            past = loop.recovery.past(window, loop.parts.followers.scheduler)
            found = self._diagnostician.examine(
                window, reading.step, decision.findings, others, depth=depth, past=past
            )  # fmt: skip
            loop.log.enter_diagnosis(found)

    # -- an exception of the program

    @property
    def explains_crashes(self) -> bool:
        """Whether one more exception of the program is looked into."""
        return self._depth is not None and self._loop.consensus.size == 1 and self._crashes < MOST_CRASHES

    def of_crash(self, error: BaseException, window: Window) -> None:
        """The user's code raised in forward: if a NaN of this step is the cause, keep an incident that names it.

        Looks only where a bad tensor is near, and then runs the forward again. The exception is raised as it was.
        `window` ends with the micro-batch it raised for.
        """
        loop, depth = self._loop, self._depth
        if depth is None:
            return
        found = self._diagnostician.explain(window, loop.step, error, depth=depth)
        if found is not None:
            self._crashes += 1
            loop.log.enter_crash(loop.step, window.keys[-1], error)
            loop.log.enter_diagnosis(found)

    # -- silent problems

    def finish(self) -> None:
        """The run ends: ask about what was waiting for more steps."""
        with self._loop.barrier("vitals", None):
            self._loop.parts.checker.ended()
        self.of_suspects()

    def of_suspects(self) -> None:
        """Ask about what the sampled checks warned of, if this is a good moment: the model in training, no window open,
        nothing in flight.

        A few steps' time for each warning, on batches from just before.
        """
        loop = self._loop
        checker = loop.parts.checker
        if not checker.suspects or loop.step < ENOUGH_STEPS or not loop.program.model.training:
            return
        loop.settle_pending()
        if len(loop.window) or loop.engine.halt is not None:
            return
        findings, checker.suspects = checker.suspects, []
        if self._depth is None or self._asked >= MOST:
            return
        with loop.barrier("diagnosis", None), torch.inference_mode(False), torch.enable_grad():
            steps = loop.recovery.recent_good(Window())
            past = loop.recovery.past(Window(), loop.parts.followers.scheduler)
            answer = self._diagnostician.look_into(findings, steps, loop.step, depth=self._depth, past=past)
            if answer is not None:
                self._asked += 1
                diagnosis, told = answer
                loop.log.enter_silent(loop.step, told, diagnosis)
                loop.log.announce()
