"""A guard on every rank: whatever goes wrong on one, all do the same, to the bit as if it had never been."""

from __future__ import annotations

from typing import Any

import pytest
from rank_launch import RunRanks

pytestmark = pytest.mark.distributed


def check(run_ranks: RunRanks, world: int = 2, **options: Any) -> list[dict[str, Any]]:
    """Run it, and see that every rank ended with the reference's bits and with the same story."""
    found = [ended.returned for ended in run_ranks("skip", world, **options)]
    for each in found:
        assert each["bits"] == each["reference"]
        assert each["same_weights"]
        assert each["same_story"]
        assert each["story"]["faults"] == {}
        assert each["story"]["settles"] == "now"
    return [each["story"] for each in found]


@pytest.mark.parametrize(("kind", "world"), [("ddp", 2), ("fsdp2", 2), ("fsdp2", 4), ("hsdp", 4)])
def test_healthy_ranks_are_left_untouched_to_the_bit(run_ranks: RunRanks, kind: str, world: int) -> None:
    for story in check(run_ranks, world, kind=kind, count=8):
        assert story["applied"] == 8
        assert story["incidents"] == 0


@pytest.mark.parametrize(("kind", "world", "bad"), [("ddp", 2, 0), ("ddp", 4, 3), ("fsdp2", 2, 1), ("hsdp", 4, 2)])
def test_a_poisoned_batch_of_one_rank_is_skipped_by_all(run_ranks: RunRanks, kind: str, world: int, bad: int) -> None:
    poison = {"how": "nan", "batches": [5], "ranks": [bad]}
    for story in check(run_ranks, world, kind=kind, poison=poison, left_out=[5]):
        assert story["applied"] == 11
        assert story["skipped"] == 1
        [[number, step, _, headline, ranks]] = story["stories"]
        assert (number, step) == (1, 5)
        assert set(ranks) == {bad}
        assert f"first on rank {bad} of {world}" in headline
        assert "nan" in headline.partition("losses by rank")[2]
