"""The screen at the end of a guarded program: what happened, where it is written down, what to do next. No torch."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ...errors import JournalError
from ...journal import read_incidents
from ...journal.incidents import read_incident
from ...journal.run_directory import incident_name
from ...records import Incident
from ...reporters.diagnosis import steps_of
from ...reporters.terminal import labelled, shown
from .supervise import Ended

_MAX_INCIDENTS = 5
_MAX_NOTICES = 6
_FIRST_RANK = re.compile(r"first on rank ([0-9]{1,6})")


def outcome(ended: Ended) -> dict[str, Any]:
    """Everything the screen says, as plain data for `--json`."""
    trained = [note for note in ended.notes if note.get("steps") or note.get("in_backward")]
    run_dirs = sorted({str(note["run_dir"]) for note in trained if note.get("run_dir")})
    if not run_dirs and (ended.run_dir / "run.json").is_file():
        run_dirs = [str(ended.run_dir)]  # a killed process leaves no note
    silent = not trained and bool(run_dirs)
    incidents = [incident for run in run_dirs for incident in _incidents(run)]
    ranks = {note.get("rank", 0) for note in trained}
    # Ranks train the same weights: the steps of one of them are the run's.
    first = [note for note in trained if note.get("rank", 0) == min(ranks, default=0)]
    total = {
        key: sum(int(note.get(key) or 0) for note in first)
        for key in ("steps", "applied", "skipped", "overflows", "rolled_back")
    }
    if silent:
        total |= _counted(run_dirs[0])
    return {
        "exit_code": ended.code,
        "signal": -ended.code if ended.code < 0 else None,
        "run_dirs": run_dirs,
        "ended_early": silent,
        "ranks": len(ranks),
        **total,
        "held": sum(int(note.get("held") or 0) for note in first),
        "halted": any(note.get("halted") for note in ended.notes),
        "incidents": incidents,
        "backwards": sum(int(note.get("backwards") or 0) for note in ended.notes),
        "first_bad_backward": next((n["first_bad_backward"] for n in ended.notes if n.get("first_bad_backward")), None),
        "in_backward": sum(int(note.get("in_backward") or 0) for note in ended.notes),
        "in_backward_refused": sum(int(note.get("in_backward_refused") or 0) for note in ended.notes),
        "processes": len(ended.notes),
        "torch": any(note.get("torch") for note in ended.notes),
        "crashes": [sentence for note in ended.notes for sentence in note.get("crashes") or ()],
        "notices": sorted({s for note in ended.notes for s in (note.get("notices") or {}).values()}),
        "faults": sorted({room for note in ended.notes for room in note.get("faults") or {}}),
    }


def print_outcome(console: Console, told: dict[str, Any]) -> None:
    """A few lines; the incidents in short."""
    console.print()
    console.print(Text(f"steady run: {headline(told)}", style="bold"), soft_wrap=True)
    for incident in told["incidents"][-_MAX_INCIDENTS:]:
        console.print(labelled("incident", _line(incident)), soft_wrap=True)
    left_out = len(told["incidents"]) - _MAX_INCIDENTS
    if left_out > 0:
        console.print(labelled("", f"and {left_out} before these"), soft_wrap=True)
    for sentence in told["crashes"]:
        console.print(labelled("crash", shown(sentence)), soft_wrap=True)
    for sentence in told["notices"][:_MAX_NOTICES]:
        console.print(labelled("note", shown(sentence)), soft_wrap=True)
    if told["faults"]:
        rooms = ", ".join(shown(room) for room in told["faults"])
        console.print(labelled("fault", f"steadygrad itself failed in {rooms}; the log says how"), soft_wrap=True)
    for run in told["run_dirs"]:
        console.print(labelled("run", shown(_short(run))), soft_wrap=True)
    if command := next_command(told):
        console.print(labelled("next", command), soft_wrap=True)


def headline(told: dict[str, Any]) -> str:
    """What happened, in one sentence."""
    steps, skipped = told["steps"], told["skipped"] - told["overflows"]
    if not told["run_dirs"] and not steps and not told["in_backward"]:
        return _never_trained(told)
    if told["in_backward"] and not steps:
        refused = told["in_backward_refused"]
        return f"{told['in_backward']} updates inside backward, {refused or 'none'} refused."
    ranks = f" on {told['ranks']} ranks" if told["ranks"] > 1 else ""
    if told["halted"]:
        return f"halted after {_count(steps, 'update')}{ranks}: {skipped} refused, the weights are the last good ones."
    counted = f"{_count(steps, 'update')}{ranks}"
    if told["ended_early"]:
        known = f"{counted}, {skipped} refused" if steps else f"{_count(len(told['incidents']), 'incident')}"
        return f"the program left without a word; until about then: {known}."
    if not skipped:
        more = f", {told['overflows']} dropped by the loss scale" if told["overflows"] else ""
        return f"{counted}, all fit to land{more}."
    if back := told["rolled_back"]:
        times = "once" if back == 1 else f"{back} times"
        return f"{counted}, {skipped} refused, and {times} back to a good state; the incidents say what was lost."
    kept = "refused; no trace of it is left" if skipped == 1 else "refused; no trace of them is left"
    return f"{counted}, {skipped} {kept}."


def _never_trained(told: dict[str, Any]) -> str:
    if not told["processes"]:
        return "nothing was guarded: no Python process told of itself (killed, -I, -E or -S, or another Python)."
    if not told["torch"]:
        return "nothing was guarded: the program never imported torch."
    if not told["backwards"]:
        return "nothing was guarded: the program never trained (no backward, no optimizer step)."
    where = told["first_bad_backward"]
    seen = f"the loss of backward number {where} was not finite" if where else "every loss was finite"
    return (
        f"nothing could be refused: {_count(told['backwards'], 'backward')} ran, and no torch.optim.Optimizer stepped "
        f"(updates by hand, or an optimizer of another kind); {seen}."
    )


def next_command(told: dict[str, Any]) -> str | None:
    """The command that shows more, or None where there is nothing more."""
    runs = told["run_dirs"]
    if not runs:
        return None
    run = shown(_short(runs[0]))
    if any(incident.diagnosis is not None for incident in told["incidents"]):
        return f"steady diagnose {run}"
    return f"steady incidents {run}"


def _line(incident: Incident) -> str:
    text = f"{incident.number}, {steps_of(incident)}: {shown(incident.headline or incident.symptom)}"
    diagnosis = incident.diagnosis
    if diagnosis is not None:
        cause = f"{shown(diagnosis.cause.code)} {shown(diagnosis.cause.slug)}" if diagnosis.cause else ""
        origin = diagnosis.origin
        place = [origin.op, f"in {origin.module}" if origin.module else None, origin.source] if origin else []
        where = " ".join(shown(part) for part in place if part)
        text += "".join(f"; {part}" for part in (cause, where or f"born in {shown(diagnosis.phase)}") if part)
        if diagnosis.sample_ids:
            return text + f"; samples {', '.join(shown(sample) for sample in diagnosis.sample_ids[:8])}"
    if incident.batch_key:
        text += f"; {shown(incident.batch_key, limit=80)}"
    return text


def _incidents(run: str) -> list[Incident]:
    """The incidents of a run, each as told by the rank that knows most of it."""
    try:
        found = read_incidents(run)
    except JournalError:
        return []
    return [_best_told(run, incident) for incident in found]


def _counted(run: str) -> dict[str, int]:
    """The steps that a killed program had written down; the last second of them may be missing."""
    from ...journal.read import steps_table

    try:
        applied = steps_table(run, columns=["applied"], allow_empty=True).column("applied").to_pylist()
    except JournalError:
        return {}
    return {"steps": len(applied), "applied": sum(applied), "skipped": len(applied) - sum(applied)}


def _best_told(run: str, incident: Incident) -> Incident:
    told = [incident]
    first = _FIRST_RANK.search(incident.headline)
    if first is not None and first[1] != "0":
        # Its batch is the one to name; the others' were sound.
        path = Path(run, "incidents", incident_name(incident.number), f"incident-rank{first[1]}.json")
        with contextlib.suppress(JournalError):
            return read_incident(path)
    for path in sorted(Path(run, "incidents", incident_name(incident.number)).glob("incident-rank*.json")):
        with contextlib.suppress(JournalError):
            told.append(read_incident(path))
    return max(told, key=lambda each: (each.diagnosis is not None and each.diagnosis.cause is not None, -each.number))


def _short(run: str) -> str:
    """As seen from here, where that is shorter."""
    try:
        return str(Path(run).relative_to(Path.cwd()))
    except ValueError:
        return run


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
