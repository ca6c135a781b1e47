"""What the page's script draws: curves with few points, every incident's place, the heat map, for each run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..terminal import shown
from ..watching.rows import RankRows
from ..watching.sampling import moving_mean, sampled, success_rate
from ..watching.story import Story, one_line
from .heat_data import heat_data

POINTS = 2400
POINTS_OF_ALL_RUNS = 6000
SMALL_POINTS = 800
MAX_RANKS_DRAWN = 8
RATE_WINDOW = 100
SMOOTHED_FROM = 240


def chart_data(stories: list[Story], anchors: dict[tuple[int, int], str]) -> dict[str, Any]:
    """One entry a run. `anchors[(run, incident)]` is where on the page that incident is told."""
    points = max(300, min(POINTS, POINTS_OF_ALL_RUNS // max(1, len(stories))))
    runs = []
    for place, story in enumerate(stories):
        drawn = _run(story, points) if story.rows is not None else {"curves": {}}
        drawn["name"] = shown(story.name, limit=80)
        drawn["clip"] = story.clip
        drawn["incidents"] = [
            [
                incident.number,
                incident.first_step,
                incident.last_step,
                shown(f"{incident.headline or incident.symptom}; {one_line(incident)}", limit=120),
                anchors.get((place, incident.number), ""),
            ]
            for incident in story.incidents
        ]
        runs.append(drawn)
    return {"runs": runs}


def _run(story: Story, points: int) -> dict[str, Any]:
    assert story.rows is not None
    rows = story.rows
    steps = rows.column("step")
    small = min(points, SMALL_POINTS)
    rate = success_rate(rows.column("applied"), rows.column("overflow"), window=RATE_WINDOW)
    curves = {
        "loss": sampled(steps, rows.column("loss"), limit=points),
        "grad_norm": sampled(steps, rows.column("grad_norm"), limit=points),
        "lr": sampled(steps, rows.column("lr"), limit=small),
        "success": sampled(steps, 100.0 * rate, limit=small),
    }
    if rows.num_rows >= SMOOTHED_FROM:
        curves["loss"]["smooth"] = moving_mean(steps, rows.column("loss"), points=curves["loss"])
    if np.isfinite(rows.column("loss_scale")).any():
        curves["loss_scale"] = sampled(steps, rows.column("loss_scale"), limit=small)
    what, sampled_at, memory = rows.memory()
    if len(memory):
        curves["memory"] = sampled(sampled_at, memory / 1e9, limit=small) | {"of": what}
    terms = {shown(name, limit=80): sampled(steps, rows.term(name), limit=small) for name in rows.term_names}
    others = [_rank(rank, small) for rank in story.ranks[1:MAX_RANKS_DRAWN]]
    ends = [int(steps.min()), int(steps.max())]
    return {"steps": ends, "curves": curves, "terms": terms, "ranks": others, "heat": heat_data(rows.heat)}


def _rank(rows: RankRows, points: int) -> dict[str, Any]:
    return {"rank": rows.rank, "loss": sampled(rows.column("step"), rows.column("loss"), limit=points)}
