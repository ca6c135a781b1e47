"""One look at a run as text, for a log file, a slow line or a script."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..run_data.counted import counted
from ..run_data.current_numbers import glance
from ..run_data.run_summary import RunSummary
from ..run_data.step_columns import RankColumns
from ..terminal.console import amount, labelled, number, shown
from .text_strips import bars, heat_lines

STYLES = {"running": "green", "ended": "bold", "halted": "red", "interrupted": "red", "crashed": "red"}
HEAT_ROWS = 8


def print_once(console: Console, story: RunSummary) -> None:
    """The state, the curves as bars, the layers as a strip of colours where there are colours, the last incidents."""
    now = glance(story)
    title = Text(shown(story.name), style="bold")
    title.append("  ").append(shown(story.state.sentence), style=STYLES[story.state.word])
    console.print(title, soft_wrap=True)
    console.print(labelled("so far", shown(story.headline)), soft_wrap=True)
    if story.rows is not None:
        _print_curves(console, story.rows, now)
    if len(story.ranks) > 1:
        ranks = ", ".join(f"{other['rank']} at {other['step']:,}" for other in now["ranks"][:16])
        console.print(labelled("ranks", f"{ranks}{' ...' if len(story.ranks) > 16 else ''}"), soft_wrap=True)
    above = {(incident["first_step"], incident["headline"]) for incident in now["incidents"]}
    for vital in [each for each in now["vitals"] if (each["step"], each["detail"]) not in above][-3:]:
        told = f"{shown(vital['code'])} step {shown(vital['step'])}: {shown(vital['detail'])}"
        console.print(labelled("silent", told), soft_wrap=True)
    for incident in now["incidents"]:
        console.print(labelled(f"no. {incident['number']}", incident_line(incident)), soft_wrap=True)
    for note in story.notes:
        console.print(labelled("note", shown(note)), soft_wrap=True)


def incident_line(incident: dict[str, Any]) -> str:
    """step 69: the loss is nan; zero division in the loss."""
    first, last = incident["first_step"], incident["last_step"]
    when = f"step {first:,}" if first == last else f"steps {first:,}-{last:,}"
    what, why = shown(incident["headline"] or incident["symptom"]), shown(incident["diagnosis"])
    return f"{when}: {why}" if why.startswith(what) else f"{when}: {what}; {why}"


def numbers_line(now: dict[str, Any]) -> str:
    """Everything that is one number, in a line."""
    parts = [
        f"step {now['step']:,}" if now["step"] is not None else "no step yet",
        f"refused {now['refused']:,}",
        f"lr {number(now['lr'], digits=3)}",
        *([f"scale {number(now['loss_scale'], digits=6)}"] if now["loss_scale"] is not None else []),
        f"applied {100 * now['success_rate_recent']:.4g} % of the last 100, {100 * now['success_rate']:.4g} % of all",
        *([f"scale overflows {now['overflows']:,}"] if now["overflows"] else []),
        *([f"{counted(now['rung'], 'remedy', 'remedies')} in force"] if now["rung"] else []),
        *([f"{number(now['steps_per_second'], digits=3)} steps/s"] if now["steps_per_second"] else []),
    ]
    return "   ".join(parts)


def memory_line(memory: dict[str, Any], *, utf: bool = True) -> str:
    """GPU memory 1.6 GB, at most 1.9 GB, and a row of bars from zero."""
    strip = bars(memory["curve"], width=len(memory["curve"]), utf=utf, base=0.0)
    return f"{memory['of']} memory {amount(memory['bytes'])}, at most {amount(memory['most'])} {strip}"


def _print_curves(console: Console, rows: RankColumns, now: dict[str, Any]) -> None:
    width = max(20, min(80, console.width - 30))
    utf = (console.encoding or "").lower().startswith("utf")
    for label, name in (("loss", "loss"), ("norm", "grad_norm")):
        if name == "loss" and not rows.loss_recorded:
            console.print(labelled(label, "not recorded"))
            continue
        line = Text(f"{number(now[name]):<12}").append(bars(rows.final(name), width=width, utf=utf), style="cyan")
        console.print(labelled(label, line), soft_wrap=True)
    if now["memory"]:
        console.print(labelled("memory", memory_line(now["memory"], utf=utf)), soft_wrap=True)
    console.print(labelled("now", numbers_line(now)), soft_wrap=True)
    if console.color_system in ("256", "truecolor"):
        for line in heat_lines(rows.heat, rows=HEAT_ROWS, width=min(110, console.width)):
            console.print(line)
