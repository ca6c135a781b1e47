"""Guarantee 1: with nothing wrong, a guarded run has the bits of the same loop unguarded, however noisy it is."""

from __future__ import annotations

import re

import pytest
from drivers import ENTRIES, GUARD, OPTIMIZER, RANKS, RUN, trained, untrained
from registry import guarantee
from scenario import FORMS, SHORT, Result, Scenario, differing

BY_FORM = {form: Scenario(optimizer=form, augment=True) for form in FORMS}
COMMON = {
    **BY_FORM,
    "spikes of 1000 times": Scenario(steps=44, optimizer="sgd", faults={25: "spike", 33: "spike", 34: "spike"}),
    "spikes without clipping": Scenario(steps=44, faults={25: "spike", 40: "spike"}, clip=None),
    "unfrozen later": Scenario(changes={5: "unfreeze"}),
    "a group added later": Scenario(changes={5: "add_group"}, scheduler=False),
    "a jump of the learning rate": Scenario(steps=20, changes={15: "lr_jump"}, scheduler=False),
    "accumulation": Scenario(accumulate=2, augment=True),
    "a moving average": Scenario(ema=True, augment=True),
}
ROUGH = [name for name in COMMON if name not in BY_FORM]
SHARDED = {
    "plain": Scenario(sharding="fsdp2", augment=True),
    "spikes": Scenario(steps=44, sharding="fsdp2", optimizer="sgd", faults={25: "spike", 40: "spike"}),
    "accumulation": Scenario(sharding="fsdp2", accumulate=2),
}
SCALED = {"scaled": Scenario(scaler=True, augment=True, steps=16)}


def check_unchanged(entry: str, group: dict[str, Scenario], name: str) -> None:
    found, wanted = trained(entry, group, name), untrained(entry, group, name)
    for one, other in zip([found, *found.others], [wanted, *wanted.others], strict=True):
        check_same(one, other)
    if entry != RUN:  # where one process trains the whole group, and counts it
        assert found.summary["skipped"] == found.summary["rolled_back"] == 0


def without_times(line: str) -> str:
    """A Trainer prints how fast it was."""
    return re.sub(r"[0-9.]+", "#", line)


def check_same(found: Result, wanted: Result) -> None:
    assert (found.error, wanted.error) == (None, None), found.message
    assert differing(found, wanted) == []
    assert found.drawn == wanted.drawn


@pytest.mark.parametrize("form", [f if f in SHORT else pytest.param(f, marks=pytest.mark.slow) for f in FORMS])
@guarantee("G1")
def test_a_healthy_run_has_the_bits_of_the_plain_loop(entry: str, form: str) -> None:
    check_unchanged(entry, COMMON, form)


@pytest.mark.parametrize("kind", ROUGH)
@guarantee("G1")
def test_a_rough_but_healthy_run_has_the_bits_of_the_plain_loop(entry: str, kind: str) -> None:
    check_unchanged(entry, COMMON, kind)


@pytest.mark.parametrize("kind", SHARDED)
@guarantee("G1", entries=[RANKS])
def test_healthy_sharded_ranks_have_the_bits_of_the_plain_loop(entry: str, kind: str) -> None:
    check_unchanged(entry, SHARDED, kind)


@guarantee("G1", entries=[GUARD, OPTIMIZER, RUN])
def test_a_healthy_run_with_a_gradient_scaler_has_the_bits_of_the_plain_loop(entry: str) -> None:
    check_unchanged(entry, SCALED, "scaled")


@guarantee("G1", entries=ENTRIES)
def test_a_healthy_run_prints_nothing_and_warns_of_nothing(entry: str) -> None:
    found, wanted = trained(entry, COMMON, "adamw"), untrained(entry, COMMON, "adamw")
    assert [without_times(line) for line in found.stdout.splitlines()] == [
        without_times(line) for line in wanted.stdout.splitlines()
    ]
    assert [w for w in found.warnings if w not in wanted.warnings] == []
    assert found.incidents == []
