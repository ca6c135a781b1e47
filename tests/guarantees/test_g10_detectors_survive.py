"""Guarantee 10: no non-finite number enters a statistic, and what comes later is detected as before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivers import train
from registry import guarantee
from scenario import Scenario

from steadygrad.journal import read_steps

FAULTS = {4: "nan_input", 9: "inf_loss", 10: "nan_gradient", 20: "nan_input"}


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@guarantee("G10")
def test_after_non_finite_steps_the_statistics_are_finite_and_later_faults_are_still_found(
    entry: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    found = train(entry, Scenario(steps=24, faults=FAULTS), run)
    assert found.error is None, found.message
    counted = {key: value for key, value in found.summary.items() if key != "incidents"}
    assert all(math.isfinite(number) for number in numbers(counted))
    rows = {row.step: row for row in read_steps(run) if row.rank == 0}
    assert sorted(step for step, row in rows.items() if not row.applied) == sorted(FAULTS)
    for row in rows.values():
        if row.applied:
            assert math.isfinite(row.grad_norm)
            assert math.isfinite(row.lr)
    for kept in run.rglob("*.json"):
        if "incident" not in str(kept):
            assert all(math.isfinite(number) for number in numbers(json.loads(kept.read_text())))
