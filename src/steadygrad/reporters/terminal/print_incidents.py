"""The incidents of a run as a table, read from its journal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...journal import Event
from ...records import Action, Decision, Incident, kinds_of
from .console import shown
from .print_diagnosis import MAX_ROWS_SHOWN, samples_of, steps_of


def print_incidents(console: Console, run: str, every: Sequence[Incident], *, left_out: int = 0) -> None:
    """One line an incident, newest last, without the first `left_out`."""
    if not every:
        console.print(Text(f"{shown(run)}: no incident. Every update was applied."))
        return
    title = f"{shown(run)}: {_count(len(every), 'incident')}"
    title += f", the newest {len(every) - left_out} of them" if left_out else ""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    table.add_column("no.", justify="right")
    for heading in ("when", "symptom", "what", "done", "batch", "cause"):
        table.add_column(heading, overflow="fold")
    kinds = {incident.number: kind for kind in kinds_of(every) for incident in kind.incidents}
    for incident in every[left_out:]:
        table.add_row(
            str(incident.number),
            steps_of(incident),
            shown(incident.symptom),
            shown(incident.headline, limit=100),
            done(incident.decision),
            batch_in_words(incident),
            _cause(incident, kinds[incident.number].best),
        )
    console.print(table)


def batch_in_words(incident: Incident) -> str:
    """The guilty samples or rows where they are known, else how the batch is called."""
    found = incident.diagnosis
    if found is None or not found.rows or found.rows_coupled:
        return shown(incident.batch_key or "-", limit=40)
    step = "" if incident.first_step == incident.last_step else f" (step {_looked_at(incident)})"
    if found.sample_ids:
        return f"sample{'' if len(found.sample_ids) == 1 else 's'} {samples_of(found)}{step}"
    more = f" and {len(found.rows) - MAX_ROWS_SHOWN} more" if len(found.rows) > MAX_ROWS_SHOWN else ""
    listed = ", ".join(map(str, found.rows[:MAX_ROWS_SHOWN])) + more
    rows = f"row{'' if len(found.rows) == 1 else 's'} {listed}{step}"
    return f"{rows} of {shown(incident.batch_key, limit=40)}" if incident.batch_key else rows


def _looked_at(incident: Incident) -> int:
    found = incident.diagnosis
    return incident.first_step if found is None or found.step is None else found.step


def print_vitals(console: Console, events: Sequence[Event], every: Sequence[Incident] = ()) -> None:
    """Silent errors that were found, one line each, without those that are among the incidents above."""
    above = {(incident.first_step, incident.headline) for incident in every}
    found = [event.data for event in events if event.kind == "vitals"]
    found = [data for data in found if (data.get("step"), data.get("detail")) not in above]
    if not found:
        return
    console.print()
    console.print(Text("silent errors", style="bold"))
    for data in found:
        code, step, detail = (shown(data.get(key, "?")) for key in ("code", "step", "detail"))
        console.print(Text(f"  {code}  step {step}  {detail}"))


def done(decision: Decision | None) -> str:
    """What was done about an incident, in words: skipped, skipped + halved the rate."""
    if decision is None:
        return "-"
    words = " + ".join(_DONE[action] for action in decision.actions)
    return words + (
        f" ({', '.join(map(shown, decision.dropped_terms))})" if Action.DROP_TERM in decision.actions else ""
    )


_DONE = {
    Action.PROCEED: "went on",
    Action.SKIP: "skipped",
    Action.TIGHTEN_CLIP: "clipped tighter",
    Action.SCALE_LR: "lowered the rate",
    Action.ROLLBACK: "rolled back",
    Action.DROP_TERM: "dropped a term",
    Action.WIDEN_PRECISION: "widened precision",
    Action.HALT: "halted",
}


def _cause(incident: Incident, best: Incident) -> str:
    if incident.diagnosis is None:
        return "not diagnosed" if best.diagnosis is None else f"same kind as {best.number}"
    cause = incident.diagnosis.cause
    return "not known" if cause is None else f"{shown(cause.code)} {shown(cause.slug)}"


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
