"""One incident in the few lines that a corner of a terminal has."""

from __future__ import annotations

from rich.text import Text

from ...records import SKIPPED_ALREADY, Incident, Kind
from ..run_data.run_summary import best_remedy, cause_in_words, place_without_module
from ..terminal.console import shown
from ..terminal.print_diagnosis import samples_of, short_source, steps_of
from ..terminal.print_incidents import done


def detail_of(incident: Incident, kind: Kind | None = None) -> Text:
    """What happened, where it began, why, and what helps."""
    text = Text()
    text.append(f"incident {incident.number}, {steps_of(incident)}: ", style="bold")
    text.append(shown(incident.headline or incident.symptom), style="bold red")
    _line(text, "done", done(incident.decision))
    if incident.diagnosis is None and kind is not None and kind.best.diagnosis is not None:
        _line(text, "like", f"incident {kind.best.number} is of the same kind; of it:")
        incident = kind.best
    diagnosis = incident.diagnosis
    if diagnosis is None:
        _line(text, "why", "not diagnosed")
        return text
    code = f" ({diagnosis.cause.code})" if diagnosis.cause is not None else ""
    _line(text, "cause", f"{cause_in_words(incident) or 'not recognised'}{code}")
    if diagnosis.rows:
        samples = f" = sample {samples_of(diagnosis)}" if diagnosis.sample_ids else ""
        _line(text, "rows", ", ".join(str(row) for row in diagnosis.rows[:8]) + samples)
    origin = diagnosis.origin
    if origin is not None:
        where = (origin.module or place_without_module(origin.phase), origin.op, short_source(origin.source))
        _line(text, "origin", "  ".join(part for part in where if part))
    remedy = best_remedy(incident)
    if diagnosis.remedies and diagnosis.remedies[0].skips:
        _line(text, "so", SKIPPED_ALREADY)
    elif remedy:
        _line(text, "remedy", f"{remedy} (verified)", style="green")
        if change := diagnosis.remedies[0].remedy.code_change:
            _line(text, "fix", change, style="green")
    if origin is not None and origin.code_line:
        _line(text, "code", origin.code_line.strip())
    if diagnosis.cause is not None:
        _line(text, "next", f"steady explain {diagnosis.cause.code}")
    return text


def _line(text: Text, label: str, told: str, *, style: str = "") -> None:
    text.append(f"\n{label:<8} ", style="dim")
    text.append(shown(told, limit=300), style=style)
