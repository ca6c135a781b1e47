"""A training loop that is only watched: its framework reports what a step was, and no update can be withheld.

Behind DeepSpeed engines and trainers whose updates cannot be refused. Steps are judged and recorded by the same engine
as everywhere; what cannot be done is not declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine import validate
from ...engine.distributed.consensus import SingleRank
from ...engine.engine import Engine, Step, Verdict, as_decided
from ...engine.fault_barrier import FaultBarrier
from ...engine.record.run_log import RunLog
from ...engine.step.window import Window
from ...journal import Journal
from ...policy import Capabilities, Policy
from ...records import Decision, Finding, Incident, Outcome, Reading


class ReportedLoop:
    """Judges and records steps that were measured elsewhere. Changes nothing."""

    def __init__(self, names: Sequence[str], *, run_dir: Any, rank: int, shown: dict[str, Any] | None = None) -> None:
        policy = Policy.named("observe")
        self.barrier = FaultBarrier()
        config = validate.run_config(policy.name, "the framework's own", 1, ()) | (shown or {})
        self.journal = Journal(run_dir, names=list(names), run_config=config, rank=rank)
        self.barrier.report_to(self.journal.event)
        self._log = RunLog(policy, self.journal, self.barrier, run=self.journal.run_id, rank=rank)
        self._engine = Engine(self, policy, self._log, self.barrier, SingleRank(rank))
        self.step = self.skipped = 0

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        return list(self._log.incidents)

    @property
    def vitals(self) -> list[Finding]:
        """Silent problems found by the sampled checks: none here, nothing is sampled."""
        return list(self._log.vitals)

    def summary(self) -> dict[str, Any]:
        """The counts of the run; `skipped` are the steps that the framework skipped by itself."""
        return {**self._log.summary(), "skipped": self.skipped, "guarded": False, "final_state": "not checked"}

    def report(
        self, loss: float | None, grad_norm: float | None, *, lr: float = 0.0, scale: float | None = None,
        skipped: bool = False,
    ) -> None:  # fmt: skip
        """One step as the framework tells it. Host only."""
        reading = Reading(
            step=self.step, loss=0.0 if loss is None else loss, grad_norm=0.0 if grad_norm is None else grad_norm,
            lr=lr, loss_scale=scale, refused=skipped,
        )  # fmt: skip
        step = Step(self.step, Window(), Outcome(step=self.step), loss_seen=loss is not None)
        self.step += 1
        self.skipped += skipped
        self._engine.conclude(step, self._engine.judge(step, reading, made=True))

    def close(self) -> None:
        """Close the journal."""
        with self.barrier("journal", None):
            self.journal.close()

    # -- what the engine asks: nothing can be done

    def capabilities(self, reading: Reading) -> Capabilities:
        return Capabilities(hold=False, lr=False)

    def withhold(self, step: Step, reading: Reading) -> Reading:
        return reading

    def quarantine(self, step: Step, reading: Reading) -> None: ...

    def diagnose(self, step: Step, reading: Reading, decision: Decision) -> None: ...

    choose_rate = as_decided  # its batches cannot be run again

    def roll_back(self, step: Step, decision: Decision) -> Decision:
        return decision

    def proceed(self, step: Step, decision: Decision) -> None: ...

    def applied(self, step: Step, verdict: Verdict) -> None: ...

    def halting(self, step: Step) -> None: ...
