"""The diagnosis's answer for one failing step: origin, cause, rows, and the remedies that were tried on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ..detect.observations.observed_run import Suspicion
from ..detect.patterns.gradient_changed_after_backward import grown_gradients
from ..detect.tensors.foreign_objects import isinstance
from ..records import Diagnosis, Origin
from ..records.errors import UsageError
from .causes import name_cause
from .causes.collect_evidence import collect_evidence, collect_silent_evidence, risen, symptom_of
from .causes.evidence import Evidence
from .interventions.backend.alternatives import proved_by_memory
from .interventions.backend.compiled import AsCompiled, runs_compiled
from .isolation.device_memory import forget, is_out_of_memory, short_of_memory, spare_by_device
from .isolation.resource_limits import OutOfTime, in_a_line, isolated, limits, within_memory
from .locate.bad_rows import (
    BadRows,
    bad_batch_rows,
    data_rows,
    find_rows,
    num_rows,
    readers_of_state,
    rows_without_proof,
)
from .locate.examine import Examination, could_be_scrubbed, examine, locate, scrubbed, tampered_with
from .remedies import propose
from .remedies.remedy_context import RemedyContext
from .remedies.trial import try_all
from .replay.offloaded import offloaded
from .replay.part_of_step import in_parts
from .replay.replay_observation import ReplayObservation, named_state, unread_state
from .replay.replay_step import CANNOT_RUN, replay
from .replay.replayable import Replayable
from .trace.compiled_graphs import find_in_compiled_code

REPLAYS_FOR_DOUBT = 2
"""How often a step that came out finite is run again before it is called a fault that does not repeat."""
SILENT_KINDS = (
    "zero_gradient",
    "outside_optimizer",
    "unmoved",
    "written_unmoved",
    "mis_sized",
    "neutralised",
    "spike",
    "state_underflow",
    "tampered_gradient",
)


def diagnose(
    replayable: Replayable, *, depth: str = "full", suspicion: Suspicion | None = None, preserve: Iterable[Any] = ()
) -> Diagnosis:
    """Find out where the first bad value of this step was computed, why, and what helps.

    `depth` "origin" stops at origin, cause and the rows that can be read off; "full" proves the rows by replay and
    tries remedies. The patient's state is bit-identical before and after, and so are the plain attributes of its model
    and of the objects in `preserve`. Syncs with the host many times. What goes wrong inside is said in the answer:
    nothing is raised but SteadyError, where other ranks are gone or the state could not be restored.
    """
    if depth not in ("origin", "full"):
        raise UsageError(f"depth is {depth!r}: expected 'origin' or 'full'.")
    return isolated(
        replayable.facts.symptom or "none",
        lambda depth: _diagnose(replayable, depth, suspicion),
        depth=depth,
        preserve=(replayable.model, *preserve),
    )


def _diagnose(replayable: Replayable, depth: str, suspicion: Suspicion | None) -> Diagnosis:
    own, parameters, notes = limits(), list(replayable.model.parameters()), list[str]()
    own.free = own.free or spare_by_device(parameters)
    if not own.lean and (short := short_of_memory(parameters)):
        own.lean, own.shortage = True, short
    with replayable.examining():
        look_back = getattr(replayable, "look_back", None)
        if depth == "full" and look_back is not None:
            with offloaded(named_state(replayable), None) if own.offloads else nullcontext():
                if within_memory(lambda: look_back() or True) is None:
                    notes.append(f"not compared with what the steps before lead to: {own.shortage}")
        if not own.least:
            return DiagnosisCase(replayable, suspicion, notes).answer(depth)
        return in_parts(replayable, lambda step: DiagnosisCase(step, suspicion).answer(depth))


def _unknown(doubt: str) -> str:
    if doubt:
        return f"not diagnosed: the bad value came out of a {doubt}, which is not read"
    return "no known pattern fits this evidence"


def _phase_of(symptom: str) -> str:
    """Where a step that came out finite again must have gone wrong, by what was seen of it."""
    if symptom == "nan_grad":
        return "backward"
    return "optimizer" if symptom in ("nan_param", "nan_state") else "forward"


class DiagnosisCase:
    """One failing step on its way from evidence to an answer."""

    def __init__(self, replayable: Replayable, suspicion: Suspicion | None, notes: Iterable[str] = ()) -> None:
        self.replayable = replayable
        if suspicion is None and replayable.facts.symptom == "spike":
            suspicion = Suspicion(symptom="spike", step=replayable.facts.step, kind="spike")
        self.suspicion = suspicion
        self.notes: list[str] = [*notes]
        self.exam: Examination | None = None
        self.compiled_rows: tuple[int, ...] | None = None

    def answer(self, depth: str) -> Diagnosis:
        evidence, origin = self._look()
        if (spoiled := self._spoiled_before()) is not None:
            return self._as_of(spoiled, depth)
        if self.exam is not None and self.exam.bad_origin is not None and self.exam.bad_origin.unseen:
            self.notes.append(
                "written by a kernel that torch does not see (Triton, CUDA, numpy), which cannot be traced"
            )
        cause, match, also = name_cause(evidence)
        doubt = self.exam.doubt if self.exam is not None else ""
        if doubt and (origin is None or origin.phase != "data"):
            cause, match, also = None, None, ()
        if cause is not None and cause.slug == "lr_divergence" and origin is not None and origin.op is not None:
            place = f" ({origin.source})" if origin.source else ""
            self.notes.append(f"it overflowed in {origin.op} of {origin.module or 'the loss'}{place}")
            origin = Origin(phase="optimizer", ordinal=origin.ordinal, inputs=origin.inputs, outputs=origin.outputs)
        rows = self._rows_in_time(evidence, origin, cause.slug if cause else "", depth)
        self.notes += [*self._first_read(), *self._not_read()]
        self.notes += [f"also considered: {slug} ({sure:.2f})" for slug, sure in also[1:4]]
        diagnosis = Diagnosis(
            symptom=evidence.symptom,
            phase=origin.phase if origin else "none",
            cause=cause,
            origin=origin,
            rows=rows.rows,
            rows_coupled=rows.coupled,
            sample_ids=self._sample_ids(rows),
            confidence=match.confidence if match else 0.0,
            reproduced=evidence.reproduced,
            because=match.because if match else _unknown(doubt),
            notes=tuple(self.notes),
            step=self.replayable.facts.step,
        )
        if depth == "origin":
            return diagnosis
        context = RemedyContext(
            replayable=self.replayable,
            evidence=evidence,
            cause=cause.slug if cause else "",
            origin=origin,
            rows=rows,
            exam=self.exam,
            suspicion=self.suspicion,
        )
        try:
            trials, untried = try_all(context, propose(context))
        except (Exception, OutOfTime) as error:  # what is known already must not be lost with a trial that went wrong
            why = limits().stopped() if isinstance(error, OutOfTime) else in_a_line(error)
            self.notes.append(f"remedies: not tried: {'out of memory' if is_out_of_memory(error) else why}")
            forget(error)
            return replace(diagnosis, notes=tuple(self.notes))
        if untried:
            self.notes.append(f"remedies: {limits().stopped(untried)}")
        return replace(diagnosis, trials=trials, notes=tuple(self.notes))

    def _spoiled_before(self) -> Replayable | None:
        """The step before, where it was finite and its forward left bad the buffer that this step reads; None where it
        did not, or is not kept."""
        bad_origin = self.exam.bad_origin if self.exam is not None else None
        leaf, earlier = bad_origin.leaf if bad_origin is not None else None, self.replayable.facts.earlier
        if leaf is None or leaf[0] != "buffer" or earlier is None:
            return None
        try:
            before: Replayable | None = earlier(1)
            seen = replay(before) if before is not None else None
        except CANNOT_RUN as error:
            forget(error)
            return None
        return before if seen is not None and leaf in seen.bad_after and leaf not in seen.bad_before else None

    def _as_of(self, before: Replayable, depth: str) -> Diagnosis:
        """The answer for the step that made a buffer bad. Its rows are those of another batch than the refused one."""
        found = DiagnosisCase(before, None).answer(depth)
        note = f"the loss of step {before.facts.step} was finite, and it left the buffer bad that this step failed by"
        return replace(found, rows=None, rows_coupled=False, sample_ids=(), notes=(*found.notes, note))

    def _rows_in_time(self, evidence: Evidence, origin: Origin | None, cause: str, depth: str) -> BadRows:
        """The rows, or a note that says why they are not known."""
        try:
            with getattr(self.replayable, "same_state", nullcontext)():
                rows = self._rows(evidence, origin, cause, depth)
        except OutOfTime:
            rows = BadRows(why=limits().stopped())
        except Exception as error:
            rows = BadRows(why="out of memory" if is_out_of_memory(error) else in_a_line(error))
            forget(error)
        if rows.why:
            known = "read off what the operation gave" if rows.rows is not None else "not determined"
            self.notes.append(f"rows: {known}: {rows.why}")
        return rows

    def _first_read(self) -> list[str]:
        """Where the step reads what came into it bad, in one note."""
        born = self.exam.bad_origin if self.exam is not None else None
        if self.exam is None or born is None or born.leaf is None or born.record is not None:
            return []
        reader = self.exam.trace.first_reader(born.leaf)
        frame = reader.stack.innermost if reader is not None else None
        if reader is None or frame is None:
            return []
        return [f"{born.leaf[1]} is first read by {reader.op} at {frame.source}: {frame.text}"]

    def _not_read(self) -> list[str]:
        """What the examination met and did not read, in one note."""
        unread = list(self.exam.trace.unread) if self.exam is not None else []
        state = unread_state(self.replayable)
        return [f"not read: {', '.join([*unread, *state][:6])}"] if unread or state else []

    def _look(self) -> tuple[Evidence, Origin | None]:
        suspicion = self.suspicion
        if suspicion is not None and suspicion.kind in SILENT_KINDS:
            return collect_silent_evidence(self.replayable, suspicion)
        exam = examine(self.replayable)
        self.exam = exam
        if exam.seen.finite and not exam.seen.bad_before:
            return self._does_not_reproduce(exam)
        grown = grown_gradients(exam.seen) or tampered_with(exam)
        if grown:
            tampered = Suspicion(
                symptom="nan_grad", step=self.replayable.facts.step, kind="tampered_gradient", names=grown
            )
            return collect_silent_evidence(self.replayable, tampered)
        if not exam.seen.loss_finite and could_be_scrubbed(exam) and scrubbed(examine(self.replayable, thorough=True)):
            born = locate(exam)
            self.notes.append(
                f"the bad value itself was made by {born.op or born.tensor} ({born.phase})" if born else ""
            )
            names = tuple(exam.seen.updates)
            hidden = Suspicion(symptom="silent", step=self.replayable.facts.step, kind="neutralised", names=names)
            return collect_silent_evidence(self.replayable, hidden)
        return self._by_memory(*collect_evidence(self.replayable, exam, suspicion))

    def _by_memory(self, evidence: Evidence, origin: Origin | None) -> tuple[Evidence, Origin | None]:
        """Where nothing explains the failure: is it finite without memory that the step reads and did not write?"""
        unnamed = evidence.leaf is not None and evidence.leaf[0] == "constant"  # may be memory that no one has written
        if (name_cause(evidence)[0] is not None and not unnamed) or evidence.stage == "commit":
            return evidence, origin
        found = proved_by_memory(self.replayable)
        if found is None:
            return evidence, origin
        slug, frame, what = found
        assert self.exam is not None
        self.exam.doubt = ""
        if self.exam.bad_origin is not None:
            self.exam.bad_origin = replace(self.exam.bad_origin, unseen=False)
        place = Origin(phase="state", tensor=what, source=frame.source, code_line=frame.text, stack=(frame.source,))
        if slug == "zero_tail":
            evidence = replace(evidence, leaf=("buffer", f"{what} ({frame.source})"), phase="state")
        elif origin is not None:
            place = replace(place, phase=origin.phase, op=origin.op, module=origin.module)
        return replace(evidence, proved_by=slug), place

    def _does_not_reproduce(self, exam: Examination) -> tuple[Evidence, Origin | None]:
        """Finite in the replay: run it again, and say so if it stays finite. A loss far above all before it is not."""
        if risen(self.replayable, exam.seen):
            step = self.replayable.facts.step
            self.suspicion = Suspicion(symptom=self.replayable.facts.symptom or "spike", step=step, kind="spike")
            return collect_silent_evidence(self.replayable, self.suspicion)
        times = 1 + sum(1 for _ in range(REPLAYS_FOR_DOUBT) if replay(self.replayable).finite)
        symptom = self.suspicion.symptom if self.suspicion else symptom_of(exam.seen, None)
        phase = _phase_of(symptom)
        as_compiled = self._as_compiled() if runs_compiled(self.replayable.model) else None
        compiled = as_compiled is not None and not as_compiled.finite
        origin = Origin(phase=phase)
        if as_compiled is not None and compiled:
            symptom = symptom_of(as_compiled, self.suspicion)
            origin = self._inside_compiled_code(as_compiled) or replace(origin, phase=_phase_of(symptom))
            self.notes.append(f"finite in {times} of {1 + REPLAYS_FOR_DOUBT} eager replays, and not as compiled code")
        else:
            self.notes.append(
                f"not reproduced: finite in {times} of {1 + REPLAYS_FOR_DOUBT} replays from the same bits"
            )
        evidence = Evidence(
            symptom=symptom,
            phase=origin.phase,
            step=self.replayable.facts.step,
            reproduced=(0, times),
            compiled=compiled,
            proved_by="eager" if compiled else "",
        )
        return evidence, origin

    def _as_compiled(self) -> ReplayObservation | None:
        """What compiled code makes of the same bits; None where it cannot be run."""
        try:
            return replay(self.replayable, change=AsCompiled())
        except CANNOT_RUN as error:
            self.notes.append(f"not replayed as compiled code: {in_a_line(error)}")
            return None

    def _inside_compiled_code(self, seen: ReplayObservation) -> Origin | None:
        """The op that the compiler got wrong; None, and a note, where it is not found."""
        batch = self.replayable.batches[seen.guilty_batch or 0] if self.replayable.batches else None
        size = num_rows(batch, self.replayable.facts.select_rows)
        try:
            found = find_in_compiled_code(self.replayable, backward=seen.loss_finite, num_rows=size)
        except CANNOT_RUN as error:
            self.notes.append(f"not located inside compiled code: {in_a_line(error)}")
            forget(error)
            return None
        if found is None:
            self.notes.append("not located inside compiled code: no graph of the model does worse than eager by itself")
            return None
        self.notes += [found.note] if found.note else []
        self.compiled_rows = found.rows
        return found.origin

    def _rows(self, evidence: Evidence, origin: Origin | None, cause: str, depth: str) -> BadRows:
        if origin is None or not self.replayable.batches:
            return BadRows()
        if evidence.compiled:
            return BadRows(rows=self.compiled_rows)
        if origin.phase == "data" and evidence.batch_outlier is not None:
            return BadRows(rows=evidence.batch_outlier[1])
        if self.exam is None:
            return BadRows()
        if cause == "uninitialised" and origin.phase == "state" and depth == "full":
            # Memory no one filled does nothing until a sample asks for it, such as the first to use a new token.
            return readers_of_state(self.replayable, self.exam)
        if origin.phase in ("state", "none") or (origin.phase == "optimizer" and depth != "full"):
            return BadRows()
        if origin.phase == "optimizer":
            return self._rows_of_update()
        if origin.phase == "data":
            if depth == "full":
                return BadRows(rows=data_rows(self.replayable, self.exam, origin.tensor or ""))
            return BadRows(rows=bad_batch_rows(self._batch, origin.tensor or "", self.replayable.facts.select_rows))
        if cause in ("transient_fault", "lr_divergence", "scaler_misuse"):
            return BadRows()
        if depth == "origin":
            return BadRows(rows=rows_without_proof(self.exam, self._batch, self.replayable.facts.select_rows))
        found = find_rows(self.replayable, self.exam)
        if (
            cause in ("empty_reduction", "poisoned_state")
            and found.rows is not None
            and len(found.rows) == num_rows(self._batch, self.replayable.facts.select_rows)
        ):
            return BadRows()  # nothing to average over, or a number that spoils them all: no row is guiltier
        return found

    def _rows_of_update(self) -> BadRows:
        """The few rows whose gradient an update does not bear, where it is finite without them; an update that fails
        with other rows as well is no matter of rows."""
        if self.exam is None or self.exam.seen.bad_before or self.exam.record is None:
            return BadRows()
        found, size = find_rows(self.replayable, self.exam), num_rows(self._batch, self.replayable.facts.select_rows)
        return found if found.proven and 2 * len(found.rows or ()) < size else BadRows()

    @property
    def _batch(self) -> Any:
        """The micro-batch in which the trouble began."""
        guilty = self.exam.seen.guilty_batch if self.exam is not None else None
        return self.replayable.batches[guilty or 0]

    def _sample_ids(self, rows: BadRows) -> tuple[str, ...]:
        known, guilty = self.replayable.facts.sample_ids, self.exam.seen.guilty_batch if self.exam is not None else None
        ids = known[guilty or 0] if len(known) > (guilty or 0) else None
        return tuple(str(ids[row]) for row in rows.rows or () if ids is not None and row < len(ids))
