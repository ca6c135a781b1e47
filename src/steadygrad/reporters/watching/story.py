"""A run's story: what ran, what became of it, how many steps landed, and the sentence that sums it up."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...journal import Event, read_run
from ...records import Incident
from .follow import Follower
from .rows import RankRows
from .state import RunState, state_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """`steps == applied + refused + overflows`; `overflows` were refused by the loss scale, as is its normal life."""

    steps: int = 0
    applied: int = 0
    refused: int = 0
    overflows: int = 0
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
class Story:
    """All that the reporters show of one run. `rows` is the rank that speaks for it, `ranks` are all of them."""

    name: str
    path: Path
    run: dict[str, Any]
    state: RunState
    counts: Counts
    ranks: list[RankRows] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    vitals: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> RankRows | None:
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
        return headline(self.counts, self.incidents, whole=not self.notes)


def tell(run_dir: str | os.PathLike[str], follower: Follower) -> Story:
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
        last_step=None if last_step is None else int(last_step),
        last_time=lead.last("time") if lead is not None else None,
    )
    if state.torn_bytes and state.word != "running":
        notes.append(
            f"The journal ends in a torn record of {state.torn_bytes} bytes: its writer was killed in the middle of "
            "it. Every step before it is here."
        )
    return Story(
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
    )


def name_of(path: Path) -> str:
    """What a run is called: the last part of its path."""
    return path.expanduser().resolve().name or str(path)


def counts_of(rows: RankRows | None) -> Counts:
    """How many steps there were and what became of them."""
    if rows is None:
        return Counts()
    applied, overflows = int(rows.column("applied").sum()), int(rows.column("overflow").sum())
    return Counts(
        steps=rows.num_rows, applied=applied, refused=rows.num_rows - applied - overflows, overflows=overflows
    )


def headline(counts: Counts, incidents: list[Incident], *, whole: bool = True) -> str:
    """One sentence: 412 steps, 3 refused, cause: fp16 overflow in layers.1.attn, verified remedy: ..."""
    parts = [f"{counts.steps:,} {'step' if counts.steps == 1 else 'steps'}", f"{counts.refused:,} refused"]
    if counts.by_program:
        parts.append(f"{counts.by_program:,} skipped by the program")
    if not counts.refused and not incidents:
        return ", ".join(parts) + (": every update was applied" if whole else "; the run's record is not whole")
    causes = causes_of(incidents)
    if causes:
        first, *others = causes
        parts.append(f"cause: {first}" + (f" and {len(others)} more" if others else ""))
    elif any(incident.diagnosis is not None for incident in incidents):
        parts.append("cause not recognised")
    elif incidents:
        parts.append(f"not diagnosed: {incidents[0].headline or incidents[0].symptom}")
    remedy = next((best for incident in incidents if (best := best_remedy(incident))), None)
    if remedy is not None:
        parts.append(f"verified remedy: {remedy}")
    return ", ".join(parts)


def causes_of(incidents: list[Incident]) -> list[str]:
    """The causes the clinic found, in words, the most frequent first: zero division in the loss."""
    found = Counter(cause for incident in incidents if (cause := cause_in_words(incident)))
    return [cause for cause, _ in found.most_common()]


def cause_in_words(incident: Incident) -> str | None:
    """fp16 overflow in layers.1.attn; None where the cause is not known."""
    diagnosis = incident.diagnosis
    if diagnosis is None or diagnosis.cause is None:
        return None
    words = diagnosis.cause.slug.replace("_", " ")
    origin = diagnosis.origin
    if origin is None:
        return words
    return f"{words} in {origin.module or place_without_module(origin.phase)}"


def place_without_module(phase: str) -> str:
    """Where something is that belongs to no submodule."""
    return {"forward": "the model itself", "loss": "the loss", "none": "the step"}.get(phase, f"the {phase}")


def best_remedy(incident: Incident) -> str | None:
    """The remedy that changed least among those that were tried on the step and made it finite."""
    if incident.diagnosis is None or not incident.diagnosis.remedies:
        return None
    remedy = incident.diagnosis.remedies[0].remedy
    return remedy.change or remedy.slug


def one_line(incident: Incident) -> str:
    """The diagnosis of an incident in a line: cause, place, remedy."""
    if incident.diagnosis is None:
        return "not diagnosed"
    cause = cause_in_words(incident) or "cause not recognised"
    remedy = best_remedy(incident)
    return f"{cause}; verified remedy: {remedy}" if remedy else cause
