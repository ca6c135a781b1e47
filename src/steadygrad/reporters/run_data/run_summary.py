"""A run's story: what ran, how it ended, how many updates were applied, and the sentence that sums it up."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...journal import Event, read_run
from ...records import Action, Incident, Kind, Severity, kinds_of, rules
from ...records.errors import UsageError
from .counted import are, counted
from .follow_run import RunFollower
from .run_state import RunState, state_of
from .step_columns import RankColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """`steps == applied + refused + overflows`, each step counted once, by its last attempt.

    `overflows` were refused by the loss scale, which is normal. `run_again` attempts were rolled back or lost.
    `applied_bad` updates were applied although their loss or gradient was not finite.
    """

    steps: int = 0
    applied: int = 0
    refused: int = 0
    overflows: int = 0
    run_again: int = 0
    applied_bad: int = 0
    by_program: int = 0
    """Batches that the program left out by itself, for a non-finite value; no step is recorded of them."""

    @property
    def due(self) -> int:
        """How many steps there were to make: without those the loss scale refused, with those the program skipped."""
        return self.steps - self.overflows + self.by_program

    @property
    def success_rate(self) -> float:
        """The share of those that were applied; 1.0 before the first."""
        return self.applied / self.due if self.due else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """All that the reporters show of one run. `rows` is the rank that stands for it, `ranks` are all of them."""

    name: str
    path: Path
    run: dict[str, Any]
    state: RunState
    counts: Counts
    ranks: list[RankColumns] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    vitals: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    earlier_run: str = ""
    """The note about another run in the same directory, if there is one."""

    @property
    def rows(self) -> RankColumns | None:
        return self.ranks[0] if self.ranks else None

    @property
    def clip(self) -> float | None:
        """The norm that gradients are clipped to, where the run says so."""
        asked = self.configuration.get("max_grad_norm")
        return float(asked) if isinstance(asked, int | float) and not isinstance(asked, bool) and asked > 0 else None

    @property
    def configuration(self) -> dict[str, Any]:
        found = self.run.get("configuration")
        return found if isinstance(found, dict) else {}

    @property
    def last_step(self) -> int | None:
        last = self.rows.last("step") if self.rows is not None else None
        return None if last is None else int(last)

    @property
    def headline(self) -> str:
        """The verdict, the cause and the remedy in one line."""
        return " ".join((self.verdict, *cause_and_remedy(self.kinds)))

    @property
    def verdict(self) -> str:
        """What happened and whether the weights are safe; claims nothing that was not recorded."""
        halted = [each.decision for each in self.incidents if each.decision and Action.HALT in each.decision.actions]
        parts = []
        if halted and self.state.word == "halted":
            parts.append(f"Halted at step {halted[-1].step:,}: {halted[-1].reason.partition(': ')[0]}.")
        parts += [updates(self.counts, self.incidents), self._silent_problems(), weights(self)]
        if self.missing:
            parts.append("The record of this run is not complete.")
        return " ".join(part for part in parts if part)

    @property
    def missing(self) -> list[str]:
        """What could not be read or was never written, as far as it shows."""
        return [note for note in self.notes if note != self.earlier_run]

    @property
    def silent(self) -> list[str]:
        """The silent problems that were found, each once: target leak (SY450). They refuse nothing."""
        bad = [event.data for event in self.vitals if event.data.get("severity") != Severity.NOTE]
        found = {(str(data.get("code")), str(data.get("slug"))): None for data in bad}
        for incident in self.incidents:
            if incident.symptom == SILENT:
                first = incident.findings[0] if incident.findings else incident.diagnosis and incident.diagnosis.cause
                found[(first.code, first.slug) if first else ("", "a silent error")] = None
        return [f"{slug.replace('_', ' ')} ({code})" if code else slug for code, slug in found]

    def _silent_problems(self) -> str:
        found = self.silent
        if not found:
            return ""
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return f"{counted(len(found), 'silent problem')} found: {', '.join(found[:3])}{more}."

    @property
    def final_state(self) -> str:
        """What the guard found when it looked at all weights and state after the last step: finite, non-finite: ...;
        "" where nothing was looked at since."""
        since = (self.rows.last("time") if self.rows is not None else None) or 0.0
        found = [str(e.data.get("state")) for e in self.events if e.kind == "final_state" and e.time >= since]
        return next((state for state in found if state != "finite"), found[-1] if found else "")

    @property
    def main(self) -> Kind | None:
        """The kind of incident to read first."""
        return main_kind(self.kinds)

    @property
    def kinds(self) -> list[Kind]:
        return kinds_of(self.incidents)


def summarise(run_dir: str | os.PathLike[str], follower: RunFollower) -> RunSummary:
    """The story so far, from what `follower` has read and from the small files beside it.

    What is damaged beside the steps costs only itself, and a note says so. Raises JournalError if this is no run.
    """
    path = Path(run_dir)
    run = read_run(path)
    incidents, events = follower.beside.look()
    notes = [*follower.faults, *follower.beside.faults]
    lead = follower.lead
    last_step = lead.last("step") if lead is not None else None
    state = state_of(
        path,
        run,
        incidents,
        events,
        last_step=None if last_step is None else int(last_step),
        last_time=lead.last("time") if lead is not None else None,
    )
    earlier_run = ""
    if began := began_anew(run, lead):
        earlier = sum(bool(incident.time) and incident.time < began for incident in incidents)
        earlier_run = (
            "An earlier run was written to this directory too. Shown are the steps and incidents of the newest; "
            f"{counted(earlier, 'incident')} of the earlier {are(earlier)} in `steady incidents` only."
        )
        notes.append(earlier_run)
        incidents = [incident for incident in incidents if not incident.time or incident.time >= began]
        events = [event for event in events if event.time >= began]
    if state.torn_bytes and state.word != "running":
        notes.append(
            f"The journal ends in a torn record of {state.torn_bytes} bytes: its writer was killed in the middle of "
            "it. Every step before it is here."
        )
    return RunSummary(
        name=name_of(path),
        path=path,
        run=run,
        state=state,
        counts=replace(counts_of(lead), by_program=sum(event.kind == "skipped_by_program" for event in events)),
        ranks=follower.ranks,
        incidents=incidents,
        vitals=[event for event in events if event.kind == "vitals"],
        events=[event for event in events if event.kind not in ("vitals", "loss_scale_overflow")],
        notes=notes,
        earlier_run=earlier_run,
    )


def began_anew(run: dict[str, Any], rows: RankColumns | None) -> float:
    """When the newest program began that counted its steps from the start again, in a directory that held steps
    already; 0.0 where there is none. A run that was resumed goes on with its numbers."""
    sessions = run.get("sessions")
    if rows is None or not isinstance(sessions, list) or len(sessions) < 2 or not rows.num_rows:
        return 0.0
    times, steps = rows.column("time"), rows.column("step")
    starts = [each.get("started") for each in sessions[1:] if isinstance(each, dict)]
    for began in sorted((float(start) for start in starts if isinstance(start, int | float)), reverse=True):
        after = times >= began
        if after.any() and not after.all() and steps[after][0] <= steps.min():
            return began
    return 0.0


def name_of(path: Path) -> str:
    """What a run is called: the last part of its path."""
    return path.expanduser().resolve().name or str(path)


def counts_of(rows: RankColumns | None) -> Counts:
    """How many steps there were and what became of them at the last attempt."""
    if rows is None or not rows.num_rows:
        return Counts()
    final = rows.final("applied")
    steps, applied, overflows = len(final), int(final.sum()), int(rows.final("overflow").sum())
    loss, norm = rows.final("loss"), rows.final("grad_norm")
    # A guard of the optimizer alone does not see the loss: a column without one number says nothing.
    bad = ~np.isfinite(norm) | (~np.isfinite(loss) if np.isfinite(loss).any() else False)
    return Counts(
        steps=steps, applied=applied, refused=steps - applied - overflows, overflows=overflows,
        run_again=rows.num_rows - steps, applied_bad=int((final & bad).sum()),
    )  # fmt: skip


SILENT = "silent"
_NAMES = {"nan_loss": "loss", "nan_grad": "gradient", "nan_param": "weights", "nan_state": "optimizer state"}


def updates(counts: Counts, incidents: list[Incident]) -> str:
    """8 of 320 updates refused (loss NaN)."""
    if not counts.steps:
        return "No update yet."
    total = f"{counts.steps:,} update{'' if counts.steps == 1 else 's'}"
    rollbacks = [each for each in incidents if each.decision and Action.ROLLBACK in each.decision.actions]
    back = f"rolled back {'once' if len(rollbacks) == 1 else f'{len(rollbacks)} times'}" if rollbacks else ""
    if counts.refused:
        whys = Counter(_why(each) for each in incidents if each not in rollbacks and refused_an_update(each))
        why = ", ".join(word for word, _ in whys.most_common(2))
        sentence = f"{counts.refused:,} of {total} refused" + (f" ({why})." if why else ".")
    elif counts.overflows:
        sentence = f"{counts.applied:,} of {total} applied, {counts.overflows:,} skipped by the loss scale."
    else:
        sentence = "The only update was applied." if counts.steps == 1 else f"All {total} applied."
    if counts.by_program:
        back = ", ".join(filter(None, (f"{counts.by_program:,} skipped by the program", back)))
    return f"{sentence[:-1]}, {back}." if back else sentence


def refused_an_update(incident: Incident) -> bool:
    """Whether an update was withheld: a silent problem, a crash and what was only watched withhold none."""
    return incident.decision is not None and not incident.decision.applies


def _why(incident: Incident) -> str:
    """loss NaN, gradient Inf, or the symptom in words."""
    name = _NAMES.get(incident.symptom)
    if name is None:
        return incident.symptom.replace("_", " ")
    return f"{name} {'Inf' if ' is inf' in incident.headline or ' is -inf' in incident.headline else 'NaN'}"


def weights(story: RunSummary) -> str:
    """Whether the weights are safe, as far as that was looked at."""
    bad = story.counts.applied_bad
    if story.final_state.startswith("non-finite"):
        return f"The weights at the end are not finite{story.final_state.removeprefix('non-finite')}."
    if bad:
        return f"{bad:,} update{' was' if bad == 1 else 's were'} applied although not finite: check the weights."
    if story.final_state == "finite":
        return "The weights are clean."
    return "No update that is not finite was applied." if story.counts.refused else ""


def main_kind(kinds: list[Kind]) -> Kind | None:
    """The kind with a verified remedy, else with a known cause; of several the most frequent, of those the first."""

    def weight(kind: Kind) -> tuple[bool, bool, int]:
        return bool(best_remedy(kind.best)), cause_in_words(kind.best) is not None, len(kind.incidents)

    return max(kinds, key=weight, default=None)


def cause_and_remedy(kinds: list[Kind]) -> list[str]:
    """Cause: div by an exact zero in the loss. Verified remedy: a floor under the argument of div."""
    main = main_kind(kinds)
    if main is None:
        return []
    others = f" (and {len(kinds) - 1} more kind{'s' if len(kinds) > 2 else ''})" if len(kinds) > 1 else ""
    if main.best.diagnosis is None:
        return [f"Not diagnosed: {main.best.headline or main.best.symptom}{others}."]
    label = "Silent error" if main.best.symptom == SILENT else "Cause"
    parts = [f"{label}: {cause_in_words(main.best) or 'not recognised'}{others}."]
    words = main.best.diagnosis.remedy_in_words
    return [*parts, f"{words[:1].upper()}{words[1:]}."] if words is not None else parts


def cause_in_words(incident: Incident) -> str | None:
    """Why and where, as a sentence without its full stop; None where the cause is not known."""
    diagnosis = incident.diagnosis
    if diagnosis is None or diagnosis.cause is None:
        return None
    try:
        usual = rules.page(diagnosis.cause.code).summary
    except UsageError:  # a code this steadygrad does not know
        usual = diagnosis.cause.slug.replace("_", " ")
    words = (diagnosis.because or usual).strip().rstrip(".")
    origin = diagnosis.origin
    if origin is None or origin.phase in ("data", "loop"):
        return words
    place = origin.module or place_without_module(origin.phase)
    return words if place in words else f"{words} in {place}"


def place_without_module(phase: str) -> str:
    """Where something is that belongs to no submodule."""
    return {"forward": "the model itself", "loss": "the loss", "none": "the step"}.get(phase, f"the {phase}")


def best_remedy(incident: Incident) -> str | None:
    """The remedy that changed least among those that were tried on the step and made it finite."""
    if incident.diagnosis is None or not incident.diagnosis.remedies:
        return None
    remedy = incident.diagnosis.remedies[0].remedy
    return remedy.change or remedy.slug


def one_line(incident: Incident, kind: Kind | None = None) -> str:
    """The diagnosis of an incident in a line: cause, place, remedy; or the like incident that has one."""
    if incident.diagnosis is None and kind is not None and kind.best.diagnosis is not None:
        return f"same kind as incident {kind.best.number}: {cause_in_words(kind.best) or 'cause not recognised'}"
    if incident.diagnosis is None:
        return "not diagnosed"
    cause = cause_in_words(incident) or "cause not recognised"
    words = incident.diagnosis.remedy_in_words
    return f"{cause}; {words}" if words else cause


def kind_of(incident: Incident, kinds: list[Kind]) -> Kind | None:
    """The kind this incident belongs to."""
    return next((kind for kind in kinds if incident.number in kind.numbers), None)
