"""The screen at the end of a guarded program: what happened, where it is written down, what to do next. No torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ....journal import read_incidents
from ....journal.incident_files import read_incident
from ....journal.program_end import ProgramEnd, end_from
from ....journal.run_directory import incident_name
from ....records import Action, Incident
from ....records.errors import JournalError, code_of
from ....reporters.run_data.counted import counted
from ....reporters.terminal.console import labelled, shown
from ....reporters.terminal.print_diagnosis import samples_of, steps_not_looked_at, steps_of
from .supervise import Ended

_MAX_INCIDENTS = 5
_MAX_NOTICES = 6
_MAX_STEPS = 5
_OUR_OPTIONS = ("--run-dir", "--policy", "--diagnose", "--notify", "--json")
_SUMMED = ("steps", "applied", "skipped", "overflows", "rolled_back", "held", "skipped_by_program", "trainings")
_FIRST_RANK = re.compile(r"first on rank ([0-9]{1,6})")


_SHOWS_TRAINING = ("steps", "in_backward", "incidents")


def outcome(ended: Ended) -> dict[str, Any]:
    """Everything the screen says, as plain data for `--json`."""
    trained = [note for note in ended.notes if any(note.get(key) for key in _SHOWS_TRAINING)]
    lost = [note for note in ended.notes if note.get("begun")]
    run_dirs = sorted({str(note["run_dir"]) for note in [*trained, *lost] if note.get("run_dir")})
    if not run_dirs and (ended.run_dir / "run.json").is_file():
        run_dirs = [str(ended.run_dir)]  # a killed process leaves no note
    silent = not trained and bool(run_dirs)
    incidents = [incident for run in run_dirs for incident in _incidents(run, ended.started)]
    ranks = {note.get("rank", 0) for note in trained}
    # Ranks train the same weights: the steps of one of them are the run's.
    first = [note for note in trained if note.get("rank", 0) == min(ranks, default=0)]
    total = {key: sum(int(note.get(key) or 0) for note in first) for key in _SUMMED}
    if silent:
        total |= _counted(run_dirs[0])
    halted = any(note.get("halted") for note in ended.notes)
    end = end_from([note["ended"] for note in trained if isinstance(note.get("ended"), dict)], {"code": ended.code})
    return {
        "exit_code": 23 if halted and ended.code == 1 else ended.code,
        "signal": -ended.code if ended.code < 0 else None,
        "run_dirs": run_dirs,
        "ended_early": silent or halted or end.how != "finished",
        "ended": "halted" if halted else end.how,
        "ended_by": end.by or None,
        "without_report": silent,
        "misplaced_option": _misplaced_option(ended),
        "ranks": len(ranks),
        **total,
        "not_checked": _sentences(ended.notes, "not_checked") + _without_report(len(lost) if trained else 0),
        "final_state": "not checked" if silent else _final_state(trained),
        "halted": halted,
        "incidents": incidents,
        "backwards": sum(int(note.get("backwards") or 0) for note in ended.notes),
        "first_bad_backward": next((n["first_bad_backward"] for n in ended.notes if n.get("first_bad_backward")), None),
        "in_backward": sum(int(note.get("in_backward") or 0) for note in ended.notes),
        "in_backward_refused": sum(int(note.get("in_backward_refused") or 0) for note in ended.notes),
        "processes": len(ended.notes),
        "torch": any(note.get("torch") for note in ended.notes),
        "guarded": any(note.get("guarded") for note in ended.notes),
        "crashes": [sentence for note in ended.notes for sentence in note.get("crashes") or ()],
        "not_restored": any("not_restored" in (note.get("notices") or {}) for note in ended.notes),
        "notices": sorted({s for note in ended.notes for s in (note.get("notices") or {}).values()}),
        "faults": sorted({place for note in ended.notes for place in note.get("faults") or {}}),
    }


def _misplaced_option(ended: Ended) -> str | None:
    """An option of ours that the program was given and failed with."""
    words = [word.partition("=")[0] for word in ended.command[1:]]
    return next((word for word in words if word in _OUR_OPTIONS), None) if ended.code == 2 else None


def _final_state(notes: list[dict[str, Any]]) -> str:
    """ "finite" only where every process that trained looked at all its weights at the end and found them so."""
    states = [str(note.get("final_state") or "not checked") for note in notes]
    unequal = next((state for state in states if state != "finite"), None)
    bad = next((state for state in states if state.startswith("non-finite")), unequal)
    return bad or ("finite" if states else "not checked")


def _without_report(number: int) -> list[str]:
    """Workers of a pool that was terminated, for example."""
    who = "a process that trained" if number == 1 else f"{number} processes that trained"
    return [f"{who} ended without a report (killed?): those updates are not counted here"] if number else []


def _sentences(notes: list[dict[str, Any]], key: str) -> list[str]:
    return sorted({str(sentence) for note in notes for sentence in note.get(key) or ()})


def print_outcome(console: Console, told: dict[str, Any]) -> None:
    """A few lines; the incidents in short."""
    console.print()
    console.print(Text(f"steady run: {headline(told)}", style="bold"), soft_wrap=True)
    for label, text in _lines(told):
        console.print(labelled(label, text), soft_wrap=True)


def _lines(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if told["misplaced_option"]:
        name = told["misplaced_option"]
        yield "hint", f"{name} behind the script is the script's: for steady run, put {name} before the script"
    if how := _how_it_ended(told):
        yield "ended", how
    for incident in told["incidents"][-_MAX_INCIDENTS:]:
        yield "incident", _line(incident)
    left_out = len(told["incidents"]) - _MAX_INCIDENTS
    if left_out > 0:
        yield "", f"and {left_out} before these"
    for sentence in told["not_checked"][:_MAX_NOTICES]:
        yield "unchecked", shown(sentence)
    for sentence in told["crashes"]:
        yield "crash", shown(sentence)
    for sentence in told["notices"][:_MAX_NOTICES]:
        yield "note", shown(sentence)
    if told["faults"]:
        places = ", ".join(f"{code_of(place)} ({shown(place)})" for place in told["faults"])
        yield "error", f"internal error of steadygrad: {places}; training went on, the log has the details"
    for run in told["run_dirs"]:
        yield "run", shown(_short(run))
    if command := next_command(told):
        yield "next", command


def _how_it_ended(told: dict[str, Any]) -> str:
    """By RuntimeError: shapes do not fit. Nothing where the program came to its end or was halted."""
    if told["ended"] in ("halted", "interrupted"):
        return "interrupted" if told["ended"] == "interrupted" else ""
    end = ProgramEnd(how=told["ended"], by=told["ended_by"] or "", handled=told["ended"] == "not known")
    return shown(end.sentence)


def headline(told: dict[str, Any]) -> str:
    """What happened, in one or two sentences. Claims nothing that was not checked."""
    untrained = not told["steps"] and not told["in_backward"]
    if untrained and (not told["run_dirs"] or told["first_bad_backward"]):
        return _nothing_checked(told)
    if told["without_report"]:
        known = _updates(told) if told["steps"] else counted(len(told["incidents"]), "incident")
        return f"the program exited without a report (killed?); recorded until then: {known}."
    if told["halted"]:
        return f"{_halt(told)} {_updates(told)}.{_weights(told)}"
    return f"{_updates(told)}.{_weights(told)}"


def _updates(told: dict[str, Any]) -> str:
    """How many updates there were and what became of them."""
    steps, refused = told["steps"], told["skipped"] - told["overflows"]
    inside = told["in_backward"] + told["in_backward_refused"]
    within = f"{counted(inside, 'update')} inside backward, {told['in_backward_refused'] or 'none'} refused"
    if inside and not steps:
        return within
    ranks = f" on {told['ranks']} ranks" if told["ranks"] > 1 else ""
    parts = []
    if told["skipped"]:
        parts.append(f"{told['applied']:,} of {counted(steps, 'update')} applied{ranks}")
    else:
        parts.append(f"{counted(steps, 'update')}{ranks}, none refused")
    if refused:
        parts.append(f"{refused:,} refused{_where(told['incidents'], refused)}")
    if told["overflows"]:
        parts.append(f"{told['overflows']:,} dropped by the loss scale")
    if told["skipped_by_program"]:
        parts.append(f"{told['skipped_by_program']:,} skipped by the program")
    if told["rolled_back"]:
        parts.append("rolled back " + ("once" if told["rolled_back"] == 1 else f"{told['rolled_back']} times"))
    if inside:
        parts.append(within)
    trainings = f" in {told['trainings']:,} trainings" if told["trainings"] > 1 else ""
    return ", ".join(parts) + trainings


def _weights(told: dict[str, Any]) -> str:
    """What is known of the weights after the last update."""
    state, refused = told["final_state"], told["skipped"] - told["overflows"]
    if state.startswith("non-finite"):
        return f" The weights at the end are not finite{state.removeprefix('non-finite')}."
    if state.startswith("finite in "):
        return f" The weights at the end are {state}; the others had ended and were not checked."
    if state != "finite":
        return " The weights at the end were not checked."
    exact = refused and not (told["rolled_back"] or told["halted"] or told["not_checked"] or told["not_restored"])
    if exact:
        return (
            f" The weights are finite, and as if {'that batch' if refused == 1 else 'those batches'} had been left out."
        )
    return " The weights at the end are finite."


def _halt(told: dict[str, Any]) -> str:
    decisions = [each.decision for each in told["incidents"] if each.decision is not None]
    last = next((each for each in reversed(decisions) if Action.HALT in each.actions), None)
    if last is None:
        return "halted."
    return f"halted at step {last.step}: {shown(last.reason, limit=200)}."


def _where(incidents: list[Incident], refused: int) -> str:
    """At which steps, where the incidents account for all of them."""
    found = [each for each in incidents if each.decision is not None and not each.decision.applies]
    if not found:
        return ""
    if sum(each.last_step - each.first_step + 1 for each in found) == refused and len(found) <= _MAX_STEPS:
        numbers = [steps_of(each).split(" ")[1] for each in found]
        return f" ({'step' if refused == 1 else 'steps'} {', '.join(numbers)})"
    return f" (first: {steps_of(found[0]).partition('-')[0].replace('steps', 'step')})"


def _nothing_checked(told: dict[str, Any]) -> str:
    if not told["processes"]:
        return "nothing was checked: no Python process loaded steadygrad (killed, -I, -E or -S, or another Python)."
    if not told["torch"]:
        return "nothing was checked: the program did not import torch."
    if not told["guarded"]:
        return "nothing was checked: torch was imported in a process that could not be guarded."
    if not told["backwards"] and told["ended"] != "finished":
        return "nothing was checked: the program ended before its first backward()."
    if not told["backwards"]:
        return (
            "nothing was checked: no optimizer step and no backward() was seen. Updates made in another way "
            "(torch.func, torch.autograd.grad, by hand) are not checked."
        )
    where = told["first_bad_backward"]
    seen = f"the loss of backward number {where} was not finite" if where else "every loss was finite"
    return (
        f"no update was checked: {counted(told['backwards'], 'backward')} ran, and no torch.optim.Optimizer stepped "
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
    return f"steady incidents {run}" if told["incidents"] else f"steady report {run}"


def _line(incident: Incident) -> str:
    text = f"{incident.number}, {steps_of(incident)}: {shown(incident.headline or incident.symptom)}"
    diagnosis = incident.diagnosis
    if diagnosis is not None:
        if diagnosis.cause is not None:
            text += f"; {shown(diagnosis.cause.code)} {shown(diagnosis.cause.slug)}"
        origin = diagnosis.origin
        place = [origin.op, f"in {origin.module}" if origin.module else None, origin.source] if origin else []
        text += f"; origin: {' '.join(shown(part) for part in place if part) or shown(diagnosis.phase)}"
        if diagnosis.sample_ids:
            unseen = steps_not_looked_at(incident)
            return f"{text}; samples {samples_of(diagnosis)}" + (f" (of {unseen})" if unseen else "")
    if incident.batch_key:
        text += f"; {shown(incident.batch_key, limit=80)}"
    return text


def _incidents(run: str, since: float) -> list[Incident]:
    """The incidents of a run, without those of an earlier run into the same folder, each as recorded by the rank that
    knows most of it."""
    try:
        found = read_incidents(run)
    except JournalError:
        return []
    return [_best_told(run, incident) for incident in found if not incident.time or incident.time >= since]


def _counted(run: str) -> dict[str, int]:
    """The steps that a killed program had written down; the last second of them may be missing."""
    from ....journal.steps.step_reader import steps_table

    try:
        applied = steps_table(run, columns=["applied"], allow_empty=True).column("applied").to_pylist()
    except JournalError:
        return {}
    return {"steps": len(applied), "applied": sum(applied), "skipped": len(applied) - sum(applied)}


def _best_told(run: str, incident: Incident) -> Incident:
    told = [incident]
    first = _FIRST_RANK.search(incident.headline)
    if first is not None and first[1] != "0":
        # Its batch is the one to name; those of the others were finite.
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
