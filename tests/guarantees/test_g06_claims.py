"""Guarantee 6: "verified" means replayed, finite, and still finite on the following batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drivers import ACCELERATE, GUARD, LIGHTNING, OPTIMIZER, RANKS, RUN, TRAINER, train
from registry import guarantee
from scenario import Result, Scenario

SKIP_THE_BATCH, RUN_AGAIN = "RX110", "RX154"
DIAGNOSING = [GUARD, TRAINER, LIGHTNING, ACCELERATE, RUN, RANKS]
ONE_BAD = Scenario(steps=14, faults={8: "nan_input"}, diagnose="auto")
ALL_BAD = Scenario(steps=14, faults=dict.fromkeys(range(8, 14), "nan_input"), diagnose="auto")
ONCE = Scenario(steps=14, faults={8: "once"}, diagnose="auto")


def verified(found: Result) -> Iterator[dict[str, Any]]:
    for incident in found.incidents:
        for trial in (incident["diagnosis"] or {}).get("trials", ()):
            if trial["verified"]:
                yield trial


@guarantee("G6", entries=DIAGNOSING)
def test_a_verified_remedy_was_finite_on_the_step_and_on_those_around_it(entry: str) -> None:
    found = train(entry, ONE_BAD)
    assert found.error is None, found.message
    assert found.incidents
    for trial in verified(found):
        assert trial["finite"]
        assert trial["steps_followed"] > 0
    assert all(each["diagnosis"] is not None or "not diagnosed" in found.said for each in found.incidents)


@guarantee("G6", entries=DIAGNOSING)
def test_skipping_the_batch_is_no_verified_remedy_where_every_later_batch_fails_too(entry: str) -> None:
    found = train(entry, ALL_BAD)
    assert found.incidents
    assert [trial for trial in verified(found) if trial["remedy"]["code"] == SKIP_THE_BATCH] == []


@guarantee("G6", entries=DIAGNOSING)
def test_what_does_not_come_again_is_said_not_to_be_reproduced_and_has_no_verified_remedy(entry: str) -> None:
    found = train(entry, ONCE)
    assert found.error is None, found.message
    assert found.incidents
    for incident in found.incidents:
        diagnosis = incident["diagnosis"]
        if diagnosis is None:
            assert "not diagnosed" in found.said
            continue
        assert diagnosis["reproduced"][0] == 0
        words = f"{diagnosis['because']} {diagnosis['notes']}"
        assert "not reproduced" in words or "cannot be run again" in words
    assert [trial for trial in verified(found) if trial["remedy"]["code"] != RUN_AGAIN] == []


@guarantee("G6", {OPTIMIZER: "claims nothing: an incident is not diagnosed (stated)"}, entries=[OPTIMIZER])
def test_an_entry_point_that_cannot_run_a_batch_again_says_that_nothing_is_diagnosed(entry: str) -> None:
    found = train(entry, ONE_BAD.but(diagnose="off"))
    assert found.incidents
    assert all(incident["diagnosis"] is None for incident in found.incidents)
    assert "it does not diagnose them" in found.said
