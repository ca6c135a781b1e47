"""A diagnosis on the terminal: where the first bad value was computed, in which rows, why, and what was tried."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...records import SKIPPED_ALREADY, Diagnosis, Incident, Kind, Origin, TensorDigest, Trial
from .console import labelled, number, shown

MAX_ROWS_SHOWN = 8


def print_diagnosis(console: Console, incident: Incident, kind: Kind | None = None, *, next_step: str = "") -> None:
    """The incident's headline and, below it, everything the diagnosis found; last, the line of code to change.

    `next_step` is what to do where nothing was diagnosed.
    """
    headline = f"incident {incident.number}, {steps_of(incident)}: {shown(incident.headline or incident.symptom)}"
    console.print(Text(headline, style="bold"))
    others = [other for other in kind.incidents if other is not incident] if kind is not None else []
    if others:
        console.print(labelled("also", _also(others)), soft_wrap=True)
    if incident.diagnosis is None:
        best = kind.best if kind is not None and kind.best.diagnosis is not None else None
        same = f"same kind as incident {best.number}: steady diagnose .../incidents/{best.number:04d}" if best else ""
        console.print(labelled("diagnosis", same or "not diagnosed"), soft_wrap=True)
        if next_step and not same:
            console.print(labelled("next", next_step), soft_wrap=True)
        return
    if unseen := steps_not_looked_at(incident):
        console.print(labelled("looked at", unseen), soft_wrap=True)
    print_findings(console, incident.diagnosis, headline=incident.headline)


def steps_not_looked_at(incident: Incident) -> str:
    """`step 44; step 45 was refused as well and not looked at`: a diagnosis is that of one step of an incident."""
    if incident.diagnosis is None or incident.first_step == incident.last_step or incident.symptom == "silent":
        return ""
    seen = incident.first_step if incident.diagnosis.step is None else incident.diagnosis.step
    others = [step for step in (incident.first_step, incident.last_step) if step != seen]
    if len(others) > 1 or incident.last_step - incident.first_step > 1:
        return f"step {seen}; the others of steps {incident.first_step}-{incident.last_step} were not looked at"
    return f"step {seen}; step {others[0]} was refused as well and not looked at"


def _also(others: Sequence[Incident]) -> str:
    """2 more of this kind: steps 75, 145."""
    steps = ", ".join(steps_of(other).partition(" ")[2] for other in others[:MAX_ROWS_SHOWN])
    more = f" and {len(others) - MAX_ROWS_SHOWN} more" if len(others) > MAX_ROWS_SHOWN else ""
    return f"{len(others)} more of this kind: step{'' if len(others) == 1 else 's'} {steps}{more}"


def print_findings(console: Console, diagnosis: Diagnosis, *, headline: str = "") -> None:
    """The diagnosis alone. What the `headline` above it says is not repeated."""
    for label, text in _lines(diagnosis, headline):
        console.print(labelled(label, text), soft_wrap=True)
    if diagnosis.trials:
        console.print(_trials(diagnosis))
        for label, text in of_trials(diagnosis):
            console.print(labelled(label, text), soft_wrap=True)
    if diagnosis.cause is not None:
        console.print(labelled("next", f"steady explain {shown(diagnosis.cause.code)}"))
    if fix := next((trial for trial in diagnosis.remedies if trial.remedy.code_change), None):
        for number_of, line in enumerate((fix.remedy.code_change or "").splitlines()):
            console.print(labelled("" if number_of else "fix", shown(line, limit=2000)), soft_wrap=True)
        console.print(labelled("", Text(f"({_how_tried(fix)})", style="dim")), soft_wrap=True)


def _how_tried(fix: Trial) -> str:
    """What a replay has shown of the lines above."""
    if not fix.remedy.own_line:
        return f"an example; tried on this step was: {shown(fix.remedy.change)}"
    moved = f", loss moved {_percent(fix.loss_gap)}" if fix.loss_gap is not None and fix.compared_with_most else ""
    size = ", with a loss out of proportion: see above" if fix.out_of_proportion else ""
    return f"tried on this step: finite{moved}{size}"


def of_trials(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What the numbers of the trials rest on."""
    lines = []
    compared = next((t for t in diagnosis.trials if t.rows_compared is not None and t.num_rows is not None), None)
    if compared is not None and compared.rows_compared != compared.num_rows:
        rows = f"the {compared.rows_compared} of {compared.num_rows} rows that are healthy without a remedy"
        few = "" if compared.compared_with_most else "; that is too few to say how far a remedy moves the loss"
        lines.append(("compared", f"over {rows}{few}"))
    if any("run again; no other batch" in trial.verdict for trial in diagnosis.remedies):
        lines.append(("followed", "on this step's batch run again: no other batch is kept"))
    if diagnosis.remedies and diagnosis.remedies[0].skips:
        lines.append(("so", f"{SKIPPED_ALREADY}; nothing else was verified"))
    return lines


def steps_of(incident: Incident) -> str:
    """step 12, or steps 12-15."""
    if incident.first_step == incident.last_step:
        return f"step {incident.first_step}"
    return f"steps {incident.first_step}-{incident.last_step}"


def _lines(diagnosis: Diagnosis, headline: str) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if diagnosis.origin is not None:
        lines.append(("origin", _where(diagnosis.origin)))
        if diagnosis.origin.code_line:
            lines.append(("", shown(diagnosis.origin.code_line.strip())))
        if diagnosis.origin.inputs:
            lines.append(("from", "; ".join(_digest(digest) for digest in diagnosis.origin.inputs[:3])))
        if len(diagnosis.origin.lead_up) > 1:
            steps = [f"{shown(d.name.split('  ')[0])} {d.absmax:.4g}" for d in diagnosis.origin.lead_up[-5:]]
            lines.append(("before", " -> ".join(steps)))
    if diagnosis.rows is not None:
        lines.append(("rows", _rows(diagnosis)))
    if diagnosis.cause is None:
        lines.append(("cause", "not known"))
    else:
        again, tries = (*diagnosis.reproduced, 0, 0)[:2]
        told = f", reproduced {again} of {tries}" if tries else ""
        lines.append(("cause", f"{shown(diagnosis.cause.code)} {shown(diagnosis.cause.slug)}{told}"))
    if diagnosis.because and diagnosis.because != headline:
        lines.append(("because", shown(diagnosis.because)))
    lines += [("note", shown(note)) for note in diagnosis.notes]
    return lines


def _where(origin: Origin) -> str:
    module = f"the {origin.phase}" if origin.module is None else origin.module or "the model itself"
    if origin.phase == "data":
        module = f"the data   {origin.tensor or ''}".rstrip()
        parts = [module, f"not finite after {origin.op}" if origin.op else "", short_path(origin.source or "")]
    else:
        parts = [module, origin.op or origin.tensor or "", short_path(origin.source or "")]
    return "   ".join(shown(part) for part in parts if part)


def short_path(source: str, root: str | None = None) -> str:
    """A path below the current directory as seen from there, for it is shorter and still opens."""
    return source.removeprefix((root or os.getcwd()).rstrip(os.sep) + os.sep)


def short_source(source: str | None, root: str | None = None) -> str:
    """For a small place: a path elsewhere, such as a package's, by its last three parts."""
    text = short_path(source or "", root)
    parts = text.split("/")
    return "…/" + "/".join(parts[-3:]) if text.startswith("/") and len(parts) > 4 else text


def _digest(digest: TensorDigest) -> str:
    shape = "x".join(str(size) for size in digest.shape) or "scalar"
    counts = ((digest.num_nan, "nan"), (digest.num_inf, "inf"), (digest.num_zero, "zero"))
    told = "".join(f", {count} {word}" for count, word in counts if count)
    name = f"{shown(digest.name)} " if digest.name else ""
    # Magnitudes are taken of floating-point tensors; for the others a zero here would say nothing.
    largest = f", largest {number(digest.absmax)}" if "float" in digest.dtype else ""
    return f"{name}{shown(digest.dtype)} {shape}{largest}{told}"


def _rows(diagnosis: Diagnosis) -> str:
    if diagnosis.rows_coupled:
        return "coupled: no row fails alone"
    if not diagnosis.rows:
        return "not found"
    text = ", ".join(str(row) for row in diagnosis.rows[:MAX_ROWS_SHOWN])
    text += f" and {len(diagnosis.rows) - MAX_ROWS_SHOWN} more" if len(diagnosis.rows) > MAX_ROWS_SHOWN else ""
    if diagnosis.sample_ids:
        text += f" (sample ids {samples_of(diagnosis)})"
    return text


def samples_of(diagnosis: Diagnosis) -> str:
    """193, 99 and 3 more."""
    samples = [shown(sample) for sample in diagnosis.sample_ids]
    more = f" and {len(samples) - MAX_ROWS_SHOWN} more" if len(samples) > MAX_ROWS_SHOWN else ""
    return ", ".join(samples[:MAX_ROWS_SHOWN]) + more


def _trials(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("  remedies", no_wrap=True)
    table.add_column("tried by replaying the step", overflow="fold")
    table.add_column("finite")
    table.add_column("loss moved", justify="right")
    table.add_column("cosine", justify="right")
    table.add_column("", no_wrap=True)
    trials = (*diagnosis.remedies, *(trial for trial in diagnosis.trials if not trial.verified))
    best = next((trial for trial in diagnosis.remedies if not trial.skips), None)
    for trial in trials:
        what = shown(trial.remedy.change or trial.remedy.slug)
        if (not trial.verified or trial.out_of_proportion) and trial.verdict:
            what += f": {shown(trial.verdict)}"
        measured = trial.compared_with_most
        table.add_row(
            f"            {shown(trial.remedy.code)}",
            what,
            Text(_finite(trial), style="green" if trial.verified else "red" if trial.tried else "dim"),
            _percent(trial.loss_gap) if measured else "",
            "" if trial.gradient_cosine is None or not measured else f"{trial.gradient_cosine:.4f}",
            "<- least change" if trial is best else "",
        )
    return table


def _finite(trial: Trial) -> str:
    return ("yes" if trial.finite else "no") if trial.tried else "-"


def _percent(gap: float | None) -> str:
    if gap is None:
        return ""
    return f"{100 * gap:.1f} %" if abs(gap) < 10 else "> 1000 %"
