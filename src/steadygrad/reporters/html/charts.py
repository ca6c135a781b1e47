"""What the page's script draws: curves with few points, every incident's place, the heat map, for each run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..run_data.downsample import mean_window, moving_mean, sampled, success_rate
from ..run_data.run_summary import RunSummary, one_line
from ..run_data.step_columns import RankColumns
from ..terminal.console import shown
from .norm_heat_map import heat_data

POINTS = 2400
POINTS_OF_ALL_RUNS = 6000
SMALL_POINTS = 800
MAX_RANKS_DRAWN = 8
RATE_WINDOW = 100
SMOOTHED_FROM = 240


def chart_data(stories: list[RunSummary], anchors: dict[tuple[int, int], str]) -> dict[str, Any]:
    """One entry a run. `anchors[(run, incident)]` is where on the page that incident is described."""
    points = max(300, min(POINTS, POINTS_OF_ALL_RUNS // max(1, len(stories))))
    runs = []
    for place, story in enumerate(stories):
        drawn = _run(story, points) if story.rows is not None else {"curves": {}}
        drawn["name"] = shown(story.name, limit=80)
        drawn["clip"] = story.clip
        kinds = {incident.number: kind for kind in story.kinds for incident in kind.incidents}
        drawn["incidents"] = [
            [
                incident.number,
                incident.first_step,
                incident.last_step,
                shown(
                    f"{incident.headline or incident.symptom}; {one_line(incident, kinds[incident.number])}", limit=120
                ),
                anchors.get((place, incident.number), ""),
            ]
            for incident in story.incidents
        ]
        runs.append(drawn)
    return {"runs": runs}


def _run(story: RunSummary, points: int) -> dict[str, Any]:
    assert story.rows is not None
    rows = story.rows
    steps = rows.final("step")
    small = min(points, SMALL_POINTS)
    rate = success_rate(rows.final("applied"), rows.final("overflow"), window=RATE_WINDOW)
    curves = {
        "loss": sampled(steps, rows.final("loss"), limit=points),
        "grad_norm": sampled(steps, rows.final("grad_norm"), limit=points),
        "lr": sampled(steps, rows.final("lr"), limit=small),
        "success": sampled(steps, 100.0 * rate, limit=small),
    }
    for name in ("loss", "grad_norm"):
        curves[name]["earlier"] = [_earlier(*attempt, limit=small) for attempt in rows.earlier(name)]
    if len(steps) >= SMOOTHED_FROM:
        curves["loss"]["smooth"] = moving_mean(steps, rows.final("loss"), points=curves["loss"])
        curves["loss"]["window"] = mean_window(len(steps))
    if np.isfinite(rows.final("loss_scale")).any():
        curves["loss_scale"] = sampled(steps, rows.final("loss_scale"), limit=small)
    what, sampled_at, memory = rows.memory()
    if len(memory):
        curves["memory"] = sampled(sampled_at, memory / 1e9, limit=small) | {"of": what}
    terms = {shown(name, limit=80): sampled(steps, rows.final_term(name), limit=small) for name in rows.term_names}
    others = [_rank(rank, small) for rank in story.ranks[1:MAX_RANKS_DRAWN]]
    ends = [int(steps.min()), int(steps.max())]
    return {"steps": ends, "curves": curves, "terms": terms, "ranks": others, "heat": heat_data(rows.heat)}


def _earlier(number: int, steps: Any, values: Any, *, limit: int) -> dict[str, Any]:
    """Attempts that were rolled back, as a line that is broken where their steps do not follow each other."""
    breaks = np.flatnonzero(np.diff(steps) != 1) + 1
    whole = sampled(np.insert(steps, breaks, steps[breaks - 1] + 1), np.insert(values, breaks, np.nan), limit=limit)
    return {"attempt": number, "x": whole["x"], "mid": whole["mid"]}


def _rank(rows: RankColumns, points: int) -> dict[str, Any]:
    return {"rank": rows.rank, "loss": sampled(rows.final("step"), rows.final("loss"), limit=points)}
