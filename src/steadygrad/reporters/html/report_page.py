"""Writing the page: the stories of some runs through one template, with all it needs inside."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ... import __version__
from ...journal import Event
from ...records import Incident, Kind, kinds_of, rules
from ...records.errors import UsageError
from ..run_data.run_state import ago
from ..run_data.run_summary import RunSummary, one_line
from ..terminal.console import shown
from .charts import RATE_WINDOW, chart_data
from .embed import as_json, content_policy, static
from .incident_view import incident_view
from .lead_up import NormsBefore, lead_up
from .number_text import figure

MAX_CARDS = 40
MAX_LISTED = 1000
MAX_EVENTS = 200
MAX_STEPS = 24
SCRIPTS = ("vendor/uPlot.iife.min.js", "theme.js", "axes.js", "marks.js", "charts.js", "heat.js", "page.js")
STYLES = ("vendor/uPlot.min.css", "colours.css", "layout.css", "charts.css", "incidents.css", "screens.css")


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run and the norms before those of its incidents that get a card."""

    story: RunSummary
    norms: NormsBefore


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run that is listed and not drawn: one too many, or one that cannot be read."""

    name: str
    path: str
    created: float | None = None
    incidents: int | None = None
    why: str = ""


def cards_of(incidents: list[Incident], *, limit: int) -> list[Incident]:
    """The incidents shown in full: of every kind the one of which most is known."""
    return [kind.best for kind in kinds_of(incidents)[:limit]]


def render(told: list[ReportedRun], others: Sequence[ListedRun] = ()) -> str:
    """The page as text. The first run is the one the top of the page speaks of."""
    stories = [entry.story for entry in told]
    cards = [cards_of(story.incidents, limit=max(4, MAX_CARDS // len(stories))) for story in stories]
    anchors = {
        (place, incident.number): f"run{place}-incident{kind.best.number}"
        for place, (story, chosen) in enumerate(zip(stories, cards, strict=True))
        for kind in story.kinds[: len(chosen)]
        for incident in kind.incidents
    }
    data = chart_data(stories, anchors)
    scripts = [static(name) for name in SCRIPTS]
    return _environment().get_template("report.html").render(
        title=shown(" · ".join(f"{story.name}: {story.headline}" for story in stories[:3]), limit=300),
        policy=content_policy([str(script) for script in scripts]),
        style=Markup("\n").join(static(name) for name in STYLES),
        scripts=scripts,
        data=as_json(data),
        runs=[
            _run_view(place, entry, chosen, anchors, data["runs"][place])
            for place, (entry, chosen) in enumerate(zip(told, cards, strict=True))
        ],
        others=[_other_view(other) for other in others],
        version=__version__,
        written=_clock(time.time()),
        rate_window=RATE_WINDOW,
        has_scale=any("loss_scale" in run["curves"] for run in data["runs"]),
        memory_of=next((run["curves"]["memory"]["of"] for run in data["runs"] if "memory" in run["curves"]), ""),
        has_terms=any(run.get("terms") for run in data["runs"]),
    )  # fmt: skip


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("steadygrad.reporters.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )


def _finalized(value: Any) -> Any:
    """Every value on its way into the page: control and direction characters become escapes. What remains is escaped
    as HTML by the template engine."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(shown(line, limit=4000) for line in value.split("\n"))
    return value


def _run_view(
    place: int, told: ReportedRun, chosen: list[Incident], anchors: dict[tuple[int, int], str], drawn: dict[str, Any]
) -> dict[str, Any]:
    story = told.story
    cards: list[dict[str, Any]] = []
    kinds = story.kinds
    why_not = "not diagnosed" + (" (diagnose='off')" if story.configuration.get("diagnose") == "off" else "")
    for incident, kind in zip(chosen, kinds, strict=False):
        view = incident_view(
            incident, kind, anchor=anchors[place, incident.number], run_path=_relative(story.path), root=os.getcwd()
        )
        view["lead_up"] = lead_up(incident, story.rows, told.norms) if story.rows is not None else None
        view["open"] = not cards
        cards.append(view)
    chief = story.main
    main = next((view for view in cards if chief is not None and view["number"] == chief.best.number), None)
    return {
        "place": place,
        "name": story.name,
        "path": _relative(story.path),
        "state": story.state,
        "headline": story.verdict,
        "counts": story.counts,
        "tiles": _tiles(story),
        "cause": main if main and main["cause"] else None,
        "cure": main if main and main["diagnosis"] and main["diagnosis"]["best"] else None,
        "cards": cards,
        "listed": [
            _listed(kind, anchors.get((place, kind.best.number)), why_not) for kind in kinds[:MAX_LISTED]
        ],
        "num_incidents": len(story.incidents),
        "num_kinds": len(kinds),
        "why_not": why_not,
        "vitals": [_vital(event.data) for event in _only_as_vitals(story)[:MAX_LISTED]],
        "events": [_event(event.kind, event.time, event.data) for event in story.events[-MAX_EVENTS:]],
        "num_events": len(story.events),
        "ranks": [_rank(rows) for rows in story.ranks] if len(story.ranks) > 1 else [],
        "notes": story.notes,
        "heat": drawn.get("heat"),
        "about": _about(story),
    }  # fmt: skip


def _tiles(story: RunSummary) -> list[tuple[str, str, str]]:
    """(label, value, tone) of the numbers a person asks for first."""
    counts, rows = story.counts, story.rows
    rate = counts.success_rate
    tiles = [
        ("steps", f"{counts.steps:,}", ""),
        *([("run again", f"{counts.run_again:,}", "")] if counts.run_again else []),
        ("applied", f"{100 * rate:.4g} %", "good" if rate > 0.9 else "warn" if rate > 0.85 else "bad"),
        ("refused", f"{counts.refused:,}", "bad" if counts.refused else "good"),
    ]
    if counts.overflows:
        tiles.append(("scale overflows", f"{counts.overflows:,}", ""))
    if rows is not None:
        loss = rows.final("loss")
        finite = loss[np.isfinite(loss)]
        if len(finite):
            tenth = finite[-max(1, min(100, len(finite) // 10)) :]
            name = f"loss (mean of last {len(tenth)})" if len(tenth) > 1 else "loss"
            tiles.append((name, f"{figure(float(finite[0]))} → {figure(float(tenth.mean()))}", ""))
        seconds = float(rows.column("time")[-1] - rows.column("time")[0])
        if seconds >= 1:
            tiles.append(("took", ago(seconds), ""))
    return tiles


def _listed(kind: Kind, anchor: str | None, why_not: str) -> dict[str, Any]:
    """One kind of incident as a line of the table: its steps, what was seen, what is known of it."""
    best = kind.best
    told = one_line(best) if best.diagnosis is not None else why_not
    return {
        "number": best.number,
        "count": len(kind.incidents),
        "steps": [(incident.first_step, incident.last_step) for incident in kind.incidents[:MAX_STEPS]],
        "left_out": max(0, len(kind.incidents) - MAX_STEPS),
        "symptom": best.symptom.replace("_", " "),
        "headline": best.headline,
        "told": "" if told == best.headline else told,
        "anchor": anchor,
    }


def _only_as_vitals(story: RunSummary) -> list[Event]:
    """Without those that are an incident as well, and shown as one."""
    above = {(incident.first_step, incident.headline) for incident in story.incidents}
    return [event for event in story.vitals if (event.data.get("step"), event.data.get("detail")) not in above]


def _relative(path: Path) -> str:
    """As seen from the current directory, where it lies below it."""
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)


def _vital(data: dict[str, Any]) -> dict[str, Any]:
    found = {key: str(data.get(key, "")) for key in ("code", "slug", "step", "subject", "detail")}
    try:
        advice = rules.page(found["code"]).sections.get("What to do", "")
    except UsageError:
        advice = ""
    return found | {"advice": " ".join(advice.split())}


def _event(kind: str, when: float, data: dict[str, Any]) -> dict[str, str]:
    told = ", ".join(f"{key} {value}" for key, value in data.items())
    return {"kind": kind.replace("_", " "), "when": _clock(when), "told": shown(told, limit=300)}


def _rank(rows: Any) -> dict[str, Any]:
    return {
        "rank": rows.rank,
        "steps": f"{rows.num_rows:,}",
        "last": f"{int(rows.last('step') or 0):,}",
        "loss": figure(rows.last("loss")),
        "refused": f"{int(rows.refused.sum()):,}",
    }


def _about(story: RunSummary) -> list[tuple[str, str]]:
    run, config = story.run, story.configuration
    versions = run.get("versions")
    sessions = run.get("sessions")
    command = run.get("command")
    created = run.get("created")
    pairs = [("run", str(run.get("run", ""))), ("directory", _relative(story.path))]
    if isinstance(created, int | float):
        pairs.append(("started", _clock(created)))
    if isinstance(command, list):
        pairs.append(("command", " ".join(str(part) for part in command)))
    pairs += [(str(key).replace("_", " "), _plain(value)) for key, value in config.items() if key not in REPEATED]
    if isinstance(versions, dict):
        pairs.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    if isinstance(sessions, list):
        pairs.append(("sessions", str(len(sessions))))
    return [(key, shown(value, limit=600)) for key, value in pairs]


REPEATED = ("command", "python", "torch", "steadygrad")
"""Keys of the configuration that are also told elsewhere."""


def _plain(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _other_view(other: ListedRun) -> dict[str, Any]:
    return {
        "name": other.name,
        "path": other.path,
        "created": _clock(other.created) if other.created is not None else "",
        "incidents": "" if other.incidents is None else f"{other.incidents:,}",
        "why": other.why,
    }


def _clock(moment: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
    except (OverflowError, ValueError, OSError):
        return str(moment)
