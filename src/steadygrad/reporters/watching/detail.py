"""One incident in the few lines that a corner of a terminal has."""

from __future__ import annotations

from rich.text import Text

from ...records import Incident
from ..diagnosis import steps_of
from ..incidents import done
from ..terminal import shown
from .story import best_remedy, cause_in_words, place_without_module


def detail_of(incident: Incident) -> Text:
    """What happened, where it was born, why, and what helps."""
    text = Text()
    text.append(f"incident {incident.number}, {steps_of(incident)}: ", style="bold")
    text.append(shown(incident.headline or incident.symptom), style="bold red")
    _line(text, "done", done(incident.decision))
    diagnosis = incident.diagnosis
    if diagnosis is None:
        _line(text, "why", "not diagnosed; an earlier incident of its kind may be")
        return text
    code = f" ({diagnosis.cause.code})" if diagnosis.cause is not None else ""
    _line(text, "cause", f"{cause_in_words(incident) or 'not recognised'}{code}")
    origin = diagnosis.origin
    if origin is not None:
        where = (origin.module or place_without_module(origin.phase), origin.op, origin.source)
        _line(text, "origin", "  ".join(part for part in where if part))
        if origin.code_line:
            _line(text, "", origin.code_line.strip())
    if diagnosis.because:
        _line(text, "because", diagnosis.because)
    if diagnosis.rows:
        _line(text, "rows", ", ".join(str(row) for row in diagnosis.rows[:8]))
    remedy = best_remedy(incident)
    if remedy:
        _line(text, "remedy", f"{remedy} (verified by replaying this step)", style="green")
    if diagnosis.cause is not None:
        _line(text, "next", f"steady explain {diagnosis.cause.code}")
    return text


def _line(text: Text, label: str, told: str, *, style: str = "") -> None:
    text.append(f"\n{label:<8} ", style="dim")
    text.append(shown(told, limit=300), style=style)
