"""The log of a run: what was judged, what was decided, what is remembered.

Takes readings, asks the detectors and the policy, keeps ledger, history and incidents, and hands all of it to the
journal. Host only. Each part it calls is shielded: if one breaks, the loop goes on with what is left, loudly.
"""

from __future__ import annotations

import contextlib
import logging
import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...detect.history import History, RefusalLimits
from ...detect.judge_step import judge
from ...detect.tensors.foreign_objects import getattr
from ...journal import Journal
from ...policy import Capabilities, Policy, decide
from ...policy.escalation import Ledger
from ...records import Action, Decision, Diagnosis, Finding, Incident, Reading, Severity, StepRecord, without_skipping
from ...records.rules import Rule
from ..fault_barrier import FaultBarrier
from ..step.window import Window
from .diagnosis_time import DiagnosisTime
from .memory_use import MemoryUse

logger = logging.getLogger("steadygrad")

_SYMPTOMS = {"SY103": "nan_grad", "SY104": "nan_grad", "SY105": "nan_param", "SY106": "nan_state", "SY107": "nan_state",
             "SY501": "nan_loss"}  # fmt: skip
_SHOWN_PER_SYMPTOM = 3
NO_LIMITS = RefusalLimits()
_DIAGNOSED_PER_SYMPTOM = 3


class RunLog:
    """Judges settled steps and remembers them."""

    refine: ClassVar[Callable[[Diagnosis, str | None], Diagnosis] | None] = None
    """What `steady run` adds to a diagnosis of a batch, given by its name, from what it knows of the loaders."""

    def __init__(
        self, policy: Policy, journal: Journal, barrier: FaultBarrier, *, run: str, rank: int = 0, quiet: bool = False
    ) -> None:
        self.policy = policy
        self.journal = journal
        self.history = History()
        self.ledger = Ledger()
        self.incidents: list[Incident] = []
        self.vitals: list[Finding] = []
        self.recent: list[StepRecord] = []
        self._barrier = barrier
        self._run = run
        self.rank, self._quiet = rank, quiet
        self.limits_in_force = RefusalLimits()
        self._shown: dict[str, int] = {}
        self._capsuled: set[str] = set()
        self.on_incident: Callable[[Incident], None] | None = None
        """Called with every incident once, when what could be found out about it is known."""
        self._announced = 0
        self._memory = MemoryUse()
        self.diagnosis_time = DiagnosisTime()
        self.skipped_by_program = 0
        self.of_optimizer = ""
        """Which of several optimizers with one count of updates this is, in words."""

    def limits(self, max_grad_norm: float | None) -> RefusalLimits:
        """What the device compares the coming step with, rounded to float32 so that host and device agree.

        Limits follow the history in jumps of a few per cent: sending them to the device is what costs.
        """
        policy = self.policy
        if not policy.acts or (not policy.refuse_spikes and policy.max_norm_to_apply is None):
            return NO_LIMITS
        with self._barrier("watch", NO_LIMITS) as answer:
            limits = self.history.limits(policy, floor=max_grad_norm or 0.0)
            if not (
                _close(limits.grad_norm, self.limits_in_force.grad_norm)
                and _close(limits.loss, self.limits_in_force.loss)
            ):
                self.limits_in_force = RefusalLimits(_float32(limits.grad_norm), _float32(limits.loss))
            answer.value = self.limits_in_force
        return answer.value

    def judge(self, reading: Reading) -> tuple[Finding, ...]:
        """The findings of one reading. If the detectors break, finiteness alone is judged."""
        try:  # not `with self._barrier`: this is every step's path
            findings = judge(reading, self.history, self.policy)
        except Exception as fault:
            self._barrier.note("watch", fault)
            findings = _bare_findings(reading)
        if not reading.posted:
            return findings
        return tuple(sorted((*findings, *reading.posted), key=lambda found: found.severity is not Severity.FATAL))

    def decide(self, reading: Reading, findings: Sequence[Finding], can: Capabilities) -> Decision:
        """What to do about it; the ledger moves on."""
        try:
            decision, self.ledger = decide(self.policy, self.ledger, reading, findings, can=can)
        except Exception as fault:
            self._barrier.note("policy", fault)
            fatal = any(found.severity is Severity.FATAL for found in findings) and self.policy.acts
            action = Action.SKIP if fatal else Action.PROCEED
            decision = Decision(step=reading.step, actions=(action,), findings=tuple(findings))
        return decision

    def enter(
        self, reading: Reading, decision: Decision, *, applied: bool, attempt: int = 0, loss_seen: bool = True
    ) -> None:
        """Remember one settled step: history, journal, and for a refused one an incident."""
        if not loss_seen and not any(reading.rank_losses):
            reading = replace(reading, rank_losses=())  # zeros that stand for losses no one saw
        try:
            self.history.admit(reading, applied)
        except Exception as fault:
            self._barrier.note("watch", fault)
        now, terms = time.time(), reading.terms
        if reading.local_loss is not None:
            terms = {**terms, "rank_loss": reading.local_loss}
        try:
            if used := self._memory.sample(now):
                terms = {**terms, **used}
        except Exception as fault:
            self._barrier.note("journal", fault)
        record = object.__new__(StepRecord)  # `StepRecord(...)`, but fast: there is one for each step
        record.__dict__.update(
            run=self._run,
            step=reading.step,
            attempt=attempt,
            rank=self.rank,
            time=now,
            batch_key=reading.batch_key,
            loss=reading.loss if loss_seen else math.nan,
            terms=terms,
            grad_norm=reading.grad_norm,
            norms=reading.norms,
            lr=reading.lr,
            loss_scale=reading.loss_scale,
            applied=applied,
            rung=decision.rung,
            flags=tuple(found.code for found in decision.findings) if decision.findings else (),
        )
        self.recent.append(record)
        if len(self.recent) > 64:
            del self.recent[:32]
        try:
            self.journal.step(record)
            if decision.findings or len(decision.actions) > 1 or not applied:
                self._enter_decision(reading, decision, applied=applied)
        except Exception as fault:
            self._barrier.note("journal", fault)

    def _enter_decision(self, reading: Reading, decision: Decision, *, applied: bool) -> None:
        worst = decision.findings[0] if decision.findings else None
        if applied:
            if worst is not None and worst.severity is not Severity.NOTE:
                self.show(f"step {reading.step}: {worst.detail}", kind=worst.code)
            self.journal.event("decision", step=decision.step, actions=list(decision.actions), reason=decision.reason)
            return
        overflow = any(found.code == "SY304" for found in decision.findings)
        if worst is not None and overflow and worst.severity is not Severity.FATAL:
            self.journal.event("loss_scale_overflow", step=decision.step, scale=reading.loss_scale)
            return
        self._enter_incident(reading, decision)

    def _enter_incident(
        self, reading: Reading, decision: Decision, *, own: bool = False, between: bool = False
    ) -> None:
        symptom = symptom_of(reading, decision.findings)
        last = self.incidents[-1] if self.incidents else None
        if not own and last is not None and last.symptom == symptom and reading.step - last.last_step <= 1:
            # The batch after the first bad one is bad as well: leaving a batch out is no remedy.
            diagnosis = last.diagnosis and without_skipping(last.diagnosis)
            incident = replace(last, last_step=reading.step, decision=decision, diagnosis=diagnosis)
            self.incidents[-1] = incident
        else:
            headline = decision.findings[0].detail if decision.findings else "the update was refused"
            headline = decision.reason if own else headline + _by_rank(reading) + self._of_optimizer()
            incident = Incident(
                number=self.journal.next_incident(),
                first_step=reading.step,
                last_step=reading.step,
                symptom=symptom,
                headline=headline,
                findings=decision.findings,
                decision=decision,
                batch_key=reading.batch_key,
                time=time.time(),
            )
            self.incidents.append(incident)
        self.journal.incident(incident)
        if own:
            self.show(f"step {reading.step}: {incident.headline}", kind="skipped_by_program")
        else:
            when = f"update {reading.step} (of all optimizers)" if self.of_optimizer else f"step {reading.step}"
            when = f"before step {reading.step}" if between else f"{when} refused"
            told = incident.headline.rpartition("; step ")[0] if self.of_optimizer else incident.headline
            self.show(f"{when}: {_refusal(told, decision.reason)}{self._of_optimizer()}", kind=symptom)

    def _of_optimizer(self) -> str:
        """`; step 40 of optimizer 2 of 2 (D)`: where several optimizers share one count of updates."""
        return f"; step {self.ledger.steps - 1} of {self.of_optimizer}" if self.of_optimizer else ""

    def enter_own_skip(self, reading: Reading, decision: Decision) -> None:
        """An incident for something that the program skipped by itself. No update was due, so no step is recorded."""
        self.skipped_by_program += 1
        with self._barrier("journal", None):
            self.journal.event("skipped_by_program", step=reading.step, reason=decision.reason)
            self._enter_incident(reading, decision, own=True)

    def enter_run_finding(self, reading: Reading, decision: Decision) -> None:
        """An incident about the run as a whole, between two steps: a divergence that was demonstrated."""
        with self._barrier("journal", None):
            self._enter_incident(reading, decision, between=True)

    def amend(self, decision: Decision, what: str) -> Decision:
        """What came of a decision, in its reason and in the incident that it belongs to."""
        decision = replace(decision, reason=f"{decision.reason}; {what}")
        if self.incidents and self.incidents[-1].last_step == decision.step:
            self.incidents[-1] = replace(self.incidents[-1], decision=decision)
            with self._barrier("journal", None):
                self.journal.incident(self.incidents[-1])
        self.show(f"step {decision.step}: {what}", kind="rollback")
        return decision

    def enter_halt(self, decision: Decision) -> None:
        with self._barrier("journal", None):
            self.journal.event("halted", step=decision.step, reason=decision.reason)

    def close(self) -> None:
        """Wait a little for notifications under way, and close the journal."""
        close = getattr(self.on_incident, "close", None)
        with self._barrier("notify", None):
            if close is not None:
                close()
        with self._barrier("journal", None):
            self.journal.close()

    def enter_crash(self, step: int, batch_key: str | None, error: BaseException) -> None:
        """An incident for an exception of the user's code that a value of the step led to."""
        words = (str(error).strip().splitlines() or [""])[0][:300]
        name = type(error).__name__.lstrip("_")
        after = "" if name == "LinAlgError" else " after a value that is not finite"
        incident = Incident(
            number=self.journal.next_incident(),
            first_step=step,
            last_step=step,
            symptom="nan_loss",
            headline=f"{name}{after}: {words}",
            batch_key=batch_key,
            time=time.time(),
        )
        self.incidents.append(incident)
        with self._barrier("journal", None):
            self.journal.incident(incident)
        self.show(f"step {step} raised {incident.headline}", kind="crash")

    def enter_silent(self, step: int, findings: Sequence[Finding], diagnosis: Diagnosis) -> None:
        """An incident for trouble that no single step shows: nothing was refused, and the diagnosis has seen it too."""
        incident = Incident(
            number=self.journal.next_incident(),
            first_step=min(found.step for found in findings),
            last_step=step,
            symptom=diagnosis.symptom,
            headline="; ".join(found.detail for found in findings),
            findings=tuple(findings),
            time=time.time(),
        )
        self.incidents.append(incident)
        self.enter_diagnosis(diagnosis)
        for found in findings:
            if not any(found.code == known.code and found.subject == known.subject for known in self.vitals):
                self.tell_vital(found)

    def enter_bad_buffers(self, step: int, names: tuple[str, ...]) -> None:
        """Buffers are not finite at the end of training, and no step has shown it: an incident."""
        known = {found.code for incident in self.incidents for found in incident.findings}
        reading = Reading(step=step, loss=0.0, grad_norm=0.0, bad_buffers=names)
        findings = [found for found in self.judge(reading) if names and found.code not in known]
        if findings:
            because = f"{findings[0].detail} at the end, and no loss or gradient showed it"
            self.enter_silent(step, findings, Diagnosis(symptom="nan_state", phase="state", because=because))
            self.announce()

    def leave_out(self, step: int, window: Window, why: str = "") -> tuple[Reading, Decision]:
        """Remember micro-batches that were taken out of a window before it was full, because someone looked, or `why`
        else."""
        losses = [float(terms["loss"]) for terms in window.terms]
        loss = sum(losses) / max(1, len(losses))
        norm = 0.0 if why else math.nan
        reading = Reading(step=step, loss=loss, grad_norm=norm, batch_key=window.key, refused=True)
        findings = self.judge(reading)
        why = why or (findings[0].detail if findings else "it was not finite")
        reason = f"left out of an unfinished window: {why}"
        decision = Decision(step=step, actions=(Action.SKIP,), findings=findings, reason=reason)
        with self._barrier("journal", None):
            self._enter_incident(reading, decision)
        return reading, decision

    def diagnosis_due(self, wish: str, *, caught: bool = False) -> str | None:
        """How deep to diagnose the newest incident: the first of a kind in full, a few more for their origin.

        `caught`: the very update that makes weights bad was caught and undone, so an earlier answer that could only
        say they were bad already is worth asking again.
        """
        if wish == "off" or not self.incidents:
            return None
        made = self.incidents[-1].diagnosis
        if made is not None:
            again = caught and made.phase == "state"
            return ("full" if wish == "auto" else "origin") if again else None
        kind = self.incidents[-1].symptom
        before = sum(1 for incident in self.incidents[:-1] if incident.symptom == kind and incident.diagnosis)
        if before >= _DIAGNOSED_PER_SYMPTOM:
            return None
        return "full" if wish == "auto" and before == 0 else "origin"

    def capsule_due(self, wish: str, reading: Reading) -> bool:
        """Whether the step just refused is the first incident of this kind; asked once for each kind, kept or not.

        An update that was undone is its own kind: it is the step that makes the poison others only find.
        """
        last = self.incidents[-1] if self.incidents else None
        if wish == "off" or self.journal.path is None or last is None or last.last_step != reading.step:
            return False
        kind = f"{last.symptom}, undone" if reading.undone else last.symptom
        first = kind not in self._capsuled
        self._capsuled.add(kind)
        return first

    def enter_capsule(self, path: str) -> None:
        """Remember where the newest incident's capsule is, as seen from the run directory."""
        self.incidents[-1] = replace(self.incidents[-1], capsule=path)
        self.journal.incident(self.incidents[-1])

    def enter_diagnosis(self, diagnosis: Diagnosis) -> None:
        """Keep the diagnosis's answer with the newest incident and say it in a line."""
        if RunLog.refine is not None:
            diagnosis = RunLog.refine(diagnosis, self.incidents[-1].batch_key)
        incident = replace(self.incidents[-1], diagnosis=diagnosis)
        self.incidents[-1] = incident
        self.journal.incident(incident)
        mine = not incident.findings or incident.findings[0].rank == self.rank
        if diagnosis.rows and mine and incident.batch_key is not None:
            self.journal.quarantine(
                incident.batch_key,
                step=incident.first_step,
                cause=diagnosis.cause.slug if diagnosis.cause else "",
                rows=diagnosis.rows,
                sample_ids=diagnosis.sample_ids,
            )
        cause = f"{diagnosis.cause.code} {diagnosis.cause.slug}" if diagnosis.cause else "cause not recognised"
        origin = diagnosis.origin
        where = ""
        if origin:
            module = f"in {origin.module}" if origin.module and origin.op else origin.module
            where = " ".join(part for part in (origin.op, module, origin.source) if part)
        # Whether leaving the batch out is enough, only the next ones tell.
        best = f"; {diagnosis.remedy_in_words}" if diagnosis.remedies and not diagnosis.remedies[0].skips else ""
        self.show(f"incident {incident.number}: {cause}; origin: {where or diagnosis.phase}{best}", kind="diagnosis")

    def announce(self) -> None:
        """Tell whoever asked to be informed of the newest incident, once for each."""
        newest = self.incidents[-1] if self.incidents else None
        if self.on_incident is not None and newest is not None and newest.number > self._announced:
            self._announced = newest.number
            with self._barrier("notify", None):
                self.on_incident(newest)

    def summary(self) -> dict[str, Any]:
        """The counts of the run so far, and what is in force."""
        ledger = self.ledger
        return {
            "steps": ledger.steps,
            "applied": ledger.applied,
            "skipped": ledger.skipped,
            "overflows": ledger.overflows,
            "rolled_back": ledger.rollbacks_total,
            "success_rate": ledger.success_rate,
            "first_bad_step": ledger.first_bad_step,
            "last_bad_step": ledger.last_bad_step,
            "incidents": len(self.incidents),
            "skipped_by_program": self.skipped_by_program,
            "lr_factor": ledger.lr_factor,
            "clip_factor": ledger.clip_factor,
            "dropped_terms": list(ledger.dropped_terms),
            "guard_faults": dict(self._barrier.faults),
            "journal_degraded": self.journal.degraded,
        }

    def tell_batch_written(self, key: str) -> None:
        """The user's loss_fn writes into the tensors it is given; say once what that means."""
        with self._barrier("journal", None):
            self.show(
                f"loss_fn writes into its batch (seen at batch {key}); if this batch must be run again it will "
                "not be the same. Later ones are copied first; write to a new tensor to spare the copy",
                kind="batch_written",
            )
            self.journal.event("batch_written", batch_key=key)

    def tell_batch_overwritten(self, step: int, keys: Sequence[str]) -> None:
        """The program has refilled the memory of batches that would be run again, and there is no copy of them."""
        with self._barrier("journal", None):
            self.show(
                f"step {step}: the memory of batch {', '.join(keys)} was written to after it was fed and there is no "
                "copy, so its update is left out as a whole and not diagnosed",
                kind="batch_overwritten",
            )
            self.journal.event("batch_overwritten", step=step, batch_keys=list(keys))

    def tell_vital(self, found: Finding) -> None:
        """Keep what a sampled check found; it names silent trouble and refuses nothing."""
        self.vitals.append(found)
        with self._barrier("journal", None):
            self.journal.event("vitals", code=found.code, slug=found.slug, step=found.step, subject=found.subject,
                               detail=found.detail, severity=str(found.severity))  # fmt: skip

    def tell_unnoticed(self, rule: Rule, step: int, names: Sequence[str]) -> None:
        """Something is not finite although every loss and gradient was."""
        detail = f"{len(names)} not finite although every loss and gradient was: {', '.join(names[:3])}"
        found = Finding(
            code=rule.code, slug=rule.slug, severity=Severity.WARNING, step=step, subject=names[0], detail=detail,
            evidence={"names": list(names[:32])},
        )  # fmt: skip
        self.tell_vital(found)
        self.show(f"{rule.code} {rule.slug}: {detail}", kind=rule.code)

    def show_once(self, sentence: str) -> None:
        """Say something about this run once."""
        if not self._quiet and sentence not in self._shown:
            self._shown[sentence] = 1
            with contextlib.suppress(Exception):  # out of a handler of the program's own
                logger.warning("%s", sentence)

    def show(self, sentence: str, *, kind: str) -> None:
        """Tell the user, the first few times for each kind; the journal has all. Of several ranks one speaks."""
        if self._quiet:
            return
        count = self._shown[kind] = self._shown.get(kind, 0) + 1
        if count <= _SHOWN_PER_SYMPTOM:
            more = " (further ones of this kind are journaled only)" if count == _SHOWN_PER_SYMPTOM else ""
            with contextlib.suppress(Exception):
                logger.warning("%s%s", sentence, more)


def symptom_of(reading: Reading, findings: Sequence[Finding]) -> str:
    """The closed vocabulary's word for what these findings amount to."""
    codes = [found.code for found in findings]
    for code in ("SY105", "SY106", "SY107"):
        if code in codes:
            return _SYMPTOMS[code]
    if "SY101" in codes or "SY102" in codes:
        return "nan_loss" if math.isnan(reading.loss) else "inf_loss"
    return next((_SYMPTOMS[code] for code in codes if code in _SYMPTOMS), "spike" if codes else "none")


def _refusal(headline: str, reason: str) -> str:
    """Why, said once: the reason of a decision mostly begins with the headline of the incident."""
    plain = reason.removeprefix("batch skipped: ")
    if plain.startswith(headline):
        return plain
    return reason if headline in reason else f"{headline} ({reason})"


def _by_rank(reading: Reading) -> str:
    """Where it began, for a run of several ranks."""
    if reading.num_ranks == 1:
        return ""
    ranks = ", ".join(map(str, reading.bad_ranks))
    losses = ", ".join(f"{loss:.4g}" for loss in reading.rank_losses[:16])
    if not reading.bad_ranks:
        return f"; on every rank (losses by rank: {losses})" if losses else "; the rank where it began is not known"
    return f"; first on rank {ranks} of {reading.num_ranks}" + (f" (losses by rank: {losses})" if losses else "")


def _bare_findings(reading: Reading) -> tuple[Finding, ...]:
    numbers = {"loss": reading.loss, "gradient norm": reading.grad_norm, **reading.terms}
    bad = [name for name, value in numbers.items() if not math.isfinite(value)]
    if not bad:
        return ()
    detail = f"{', '.join(bad)} not finite"
    code = "SY101" if "loss" in bad else "SY103"
    return (Finding(code=code, slug="non_finite", severity=Severity.FATAL, step=reading.step, detail=detail),)


def _close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 0.05 * abs(b) < math.inf


def _float32(value: float) -> float:
    if not math.isfinite(value) or value > 3.4e38:
        return math.inf
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
