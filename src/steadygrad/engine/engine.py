"""The engine: measure, judge, decide, commit or refuse, record. One for all entry points.

An entry point is an adapter for one kind of training loop (`TrainingLoop`): it measures a step, makes or withholds its
update, restores state and runs batches again, as far as it can. Everything that is judged or decided about a step is
judged and decided here, over plain data:

    verdict = engine.judge(step, reading)    # refuses by itself where it must: then the step is dealt with
    if verdict.applies:
        ...the adapter makes the update and looks at what it made...
        engine.conclude(step, verdict)       # or engine.refuse(step, reading) if the update itself made a bad value

What an entry point cannot do it does not declare in its capabilities; the policy then decides without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..detect.refusal_rule import must_refuse
from ..policy import Capabilities, Ledger, Policy
from ..records import Action, Decision, Finding, Outcome, Reading
from ..records.errors import TrainingHalted
from .distributed.consensus import SingleRank
from .fault_barrier import FaultBarrier
from .record.run_log import RunLog
from .state.forward_state import Entry
from .step.numerics_findings import BOARD, is_fatal, with_numerics_findings
from .step.window import Window

_POISONED = frozenset({"SY105", "SY106"})
NOT_ASKED = Capabilities()


@dataclass(slots=True)
class Step:
    """One update under way: its micro-batches, and what was promised about it."""

    number: int
    window: Window
    outcome: Outcome
    attempt: int = 0
    gradients: Any = None
    """The measured gradients, while they are still those of this step."""
    behind: Sequence[tuple[Any, str]] = ()
    """Micro-batches that were run after it, to be run again if it is refused."""
    next_outcome: Outcome | None = None
    """What was promised about those."""
    kept: list[tuple[Any, str]] = field(default_factory=list)
    """Of a refused step: its good micro-batches, to be run again."""
    again: bool = False
    """All of it is run again, with other random numbers, and its own outcome is that of the second run."""
    loss_seen: bool = True
    after: Entry | None = None
    """The state after its forward, where more has run since."""
    ledger: Ledger | None = None
    """As it was before the step was judged, so that one whose update turns out bad is counted once."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about a step whose update may be made; `applies` is False where it was refused."""

    applies: bool
    reading: Reading
    decision: Decision


class TrainingLoop(Protocol):
    """What the engine asks of an entry point. Nothing here judges or decides."""

    def capabilities(self, reading: Reading) -> Capabilities:
        """What can be done besides skipping, given what is known of the step."""

    def withhold(self, step: Step, reading: Reading) -> Reading:
        """Leave no trace of a refused step; the reading with what a closer look at it found."""

    def quarantine(self, step: Step, reading: Reading) -> None:
        """Remember which batches were refused."""

    def diagnose(self, step: Step, reading: Reading, decision: Decision) -> None:
        """Find out why, as far as this loop can be run again. Ends as if nothing had happened."""

    def choose_rate(self, decision: Decision) -> Decision:
        """Before a rollback: the decision with the learning rate to go on with, where that can be tried."""

    def roll_back(self, step: Step, decision: Decision) -> Decision:
        """Restore a good state; the decision with what came of it (with HALT if there is none)."""

    def proceed(self, step: Step, decision: Decision) -> None:
        """Go on after a refused step, with what was decided in force: run again what is good of it and what came
        behind it."""

    def applied(self, step: Step, verdict: Verdict) -> None:
        """An update was made and recorded."""

    def halting(self, step: Step) -> None:
        """Training ends after this step: keep what should be kept."""


def as_decided(loop: Any, decision: Decision) -> Decision:
    """`choose_rate` of a loop whose batches cannot be run again."""
    return decision


class Engine:
    """Judges, decides and records the steps of one training. State belongs to it and to nothing else."""

    def __init__(
        self, loop: TrainingLoop, policy: Policy, log: RunLog, barrier: FaultBarrier, ranks: SingleRank
    ) -> None:
        self.loop, self.policy, self.log, self.barrier, self.ranks = loop, policy, log, barrier, ranks
        self.halt: Decision | None = None
        self._undone = False

    def judge(self, step: Step, reading: Reading, *, made: bool = False) -> Verdict:
        """Judge a measured step, before its update where the host decides, after it (`made`) where the device did.

        `reading.refused` is the device's own decision.
        """
        if BOARD in sys.modules:
            reading = with_numerics_findings(reading, made=made, alone=self.ranks.size == 1)
        bad = reading.refused or must_refuse(reading) or (reading.posted and is_fatal(reading.posted))
        if bad and self.policy.acts and (reading.refused or (not made and self.loop.capabilities(reading).hold)):
            return self.refuse(step, reading)
        step.ledger = self.log.ledger
        return Verdict(True, reading, self._decide(reading, self.log.judge(reading)))

    def refuse(self, step: Step, reading: Reading) -> Verdict:
        """Leave no trace of a step, record it, find out why, and go on as decided."""
        reading = replace(self.loop.withhold(step, replace(reading, refused=True)), refused=True)
        if step.ledger is not None:
            self.log.ledger, step.ledger = step.ledger, None
        decision = self._decide(reading, self.log.judge(reading))
        if Action.ROLLBACK in decision.actions:
            decision = self.loop.choose_rate(decision)
        self.log.enter(reading, decision, applied=False, attempt=step.attempt, loss_seen=step.loss_seen)
        self.loop.quarantine(step, reading)
        if not reading.scale_to_blame:
            self.loop.diagnose(step, reading, decision)
            self.log.announce()
        step.outcome.resolve(decision=decision, reading=reading, applied=False)
        if Action.ROLLBACK in decision.actions:
            decision = self.loop.roll_back(step, decision)
        if Action.HALT in decision.actions:
            self.halt, self._undone = decision, reading.undone
            self.log.enter_halt(decision)
            self.loop.halting(step)
        elif Action.ROLLBACK not in decision.actions:
            self.loop.proceed(step, decision)
        return Verdict(False, reading, decision)

    def conclude(self, step: Step, verdict: Verdict) -> None:
        """Record an update that was made and, where that is due, looked at."""
        reading, decision = verdict.reading, verdict.decision
        applied = not reading.refused  # a loop that is only watched may have skipped the step by itself
        self.log.enter(reading, decision, applied=applied, attempt=step.attempt, loss_seen=step.loss_seen)
        self.loop.applied(step, verdict)
        step.outcome.resolve(decision=decision, reading=reading, applied=applied)

    def record_skip(self, step: Step, reading: Reading, what: str) -> None:
        """A batch or an update that the program left out by itself: an incident like any other, counted apart."""
        reading = replace(reading, refused=True)
        findings = self.log.judge(reading)
        decision = Decision(step=reading.step, actions=(Action.SKIP,), findings=findings, reason=what)
        self.log.enter_own_skip(reading, decision)
        self.loop.diagnose(step, reading, decision)
        self.log.announce()

    def act_on(self, step: Step, reading: Reading, findings: Sequence[Finding]) -> Decision:
        """Decide about the run between two steps, on findings that were demonstrated; roll back or halt if decided."""
        decision = self._decide(reading, findings)
        if Action.ROLLBACK in decision.actions:
            decision = self.loop.choose_rate(decision)
        if Action.ROLLBACK in decision.actions or Action.HALT in decision.actions:
            self.log.enter_run_finding(reading, decision)
            self.loop.diagnose(step, reading, decision)
            self.log.announce()
        if Action.ROLLBACK in decision.actions:
            decision = self.loop.roll_back(step, decision)
        if Action.HALT in decision.actions:
            self.halt, self._undone = decision, reading.undone
            self.loop.halting(step)
        return decision

    def halted(self) -> TrainingHalted:
        """The exception that ends this training, and only this one."""
        assert self.halt is not None
        poisoned = not self._undone and any(found.code in _POISONED for found in self.halt.findings)
        return TrainingHalted.at(self.halt.step, self.halt.reason, self.log.journal.path, poisoned=poisoned)

    def _decide(self, reading: Reading, findings: Sequence[Finding]) -> Decision:
        # Only what is decided about a bad step depends on what the loop can do.
        calm = not (findings or reading.refused or self.log.ledger.halted)
        decision = self.log.decide(reading, findings, NOT_ASKED if calm else self.loop.capabilities(reading))
        if self.ranks.size > 1:
            self.ranks.note(decision)
        return decision
