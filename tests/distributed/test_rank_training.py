"""A guard on every rank: whatever goes wrong on one, all do the same, to the bit as if it had never been."""

from __future__ import annotations

from typing import Any

import pytest
from rank_launch import RunRanks

pytestmark = pytest.mark.distributed


def check(run_ranks: RunRanks, world: int = 2, **options: Any) -> list[dict[str, Any]]:
    """Run it, and see that every rank ended with the reference's bits and with the same story."""
    ended = run_ranks("skip", world, **options)
    found = [each.returned for each in ended]
    for each, log in zip(found, (rank.log for rank in ended), strict=True):
        assert each["bits"] == each["reference"]
        assert each["same_weights"]
        assert each["same_story"]
        assert each["story"]["faults"] == {}, log
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


@pytest.mark.parametrize(("kind", "world", "bad"), [("ddp", 2, 1), ("fsdp2", 2, 0)])
def test_a_gradient_that_turns_bad_in_backward_is_traced_to_its_rank(
    run_ranks: RunRanks, kind: str, world: int, bad: int
) -> None:
    poison = {"how": "trap", "batches": [4], "ranks": [bad]}
    for story in check(run_ranks, world, kind=kind, poison=poison, left_out=[4]):
        [[_, step, symptom, headline, ranks]] = story["stories"]
        assert (step, symptom) == (4, "nan_grad")
        assert set(ranks) == {bad}
        assert f"first on rank {bad} of {world}" in headline


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_bad_micro_batch_on_one_rank_leaves_the_window_of_all(run_ranks: RunRanks, kind: str) -> None:
    # Windows of two: without batch 5 its neighbour opens the next window, as in the plain run without it.
    poison = {"how": "inf", "batches": [5], "ranks": [1]}
    for story in check(run_ranks, kind=kind, poison=poison, left_out=[5], accumulate=2, count=13):
        assert story["applied"] == 6
        assert story["skipped"] == 1


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_finite_spike_of_one_rank_is_refused_by_all_from_the_same_limits(run_ranks: RunRanks, kind: str) -> None:
    poison = {"how": "spike", "batches": [30], "ranks": [1]}
    options = {"policy": {"refuse_spikes": True}}
    for story in check(run_ranks, kind=kind, poison=poison, left_out=[30], count=34, optimizer="sgd", options=options):
        [[_, step, symptom, headline, ranks]] = story["stories"]
        assert (step, symptom) == (30, "spike")
        assert set(ranks) == {1}
        assert "first on rank 1 of 2" in headline


@pytest.mark.parametrize(("kind", "world", "how"), [("fsdp2", 2, "nan"), ("hsdp", 4, "trap")])
def test_without_clipping_sharded_ranks_are_untouched_and_skip_alike(
    run_ranks: RunRanks, kind: str, world: int, how: str
) -> None:
    poison = {"how": how, "batches": [3], "ranks": [0]}
    check(run_ranks, world, kind=kind, poison=poison, left_out=[3], clip=None)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "hsdp"])
def test_the_norm_is_that_of_the_whole_and_costs_at_most_one_collective(run_ranks: RunRanks, kind: str) -> None:
    for ended in run_ranks("norms", 4, kind=kind):
        for clip in ("clipped", "unclipped"):
            found = ended.returned[clip]
            assert found["norm"] == pytest.approx(found["of the whole"], rel=1e-6)
            assert found["norms"] == pytest.approx(found["of each whole"], rel=1e-6)
            assert found["collectives"] == found["of the plain loop"] + 1


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_poisoned_weights_on_one_rank_are_rolled_back_on_all(run_ranks: RunRanks, kind: str) -> None:
    """Somebody writes a NaN into one rank's weights between two steps."""
    for story in check(run_ranks, kind=kind, poke={"rank": 1, "before": 7}):
        assert story["rolled_back"] == 1
        assert story["incidents"] == 1
        assert "nan" in story["stories"][0][2]


def test_a_streak_backs_off_and_halts_on_all_ranks_at_the_same_step(run_ranks: RunRanks) -> None:
    ended = run_ranks("halt", 2)
    assert [each.status for each in ended] == [23, 23]
    first, second = (each.message for each in ended)
    assert first == second
    assert "Training was halted at step" in first


@pytest.mark.parametrize(("kind", "world"), [("ddp", 2), ("fsdp2", 2), pytest.param("hsdp", 4, marks=pytest.mark.slow)])
def test_ranks_diagnose_in_lockstep_and_all_have_the_answer(run_ranks: RunRanks, kind: str, world: int) -> None:
    poison = {"how": "trap", "batches": [4], "ranks": [1]}
    for story in check(run_ranks, world=world, kind=kind, poison=poison, left_out=[4], options={"diagnose": "auto"}):
        [[cause, op, _, remedies]] = story["diagnoses"]
        assert cause == "sqrt_grad_at_zero"
        assert "sqrt" in op
        assert remedies


def test_a_step_that_talks_to_the_other_ranks_itself_is_run_again_on_all_of_them_at_once(run_ranks: RunRanks) -> None:
    poison = {"how": "nan", "batches": [5], "ranks": [1]}
    stories = check(
        run_ranks, kind="ddp", poison=poison, left_out=[5], accumulate=2, count=9, talkative=True,
        options={"diagnose": "auto"},
    )  # fmt: skip
    for story in stories:
        [[cause, _, _, remedies]] = story["diagnoses"]
        assert cause == "bad_input"
        assert remedies == []  # what one rank changes would have to be changed on all
        assert "first on rank 1 of 2" in story["stories"][0][3]


@pytest.mark.parametrize("door", ["optimizer", "loop"])
@pytest.mark.parametrize(("kind", "how"), [("ddp", "nan"), ("fsdp2", "trap")])
def test_a_guard_attached_to_a_loop_skips_alike_on_all_ranks(
    run_ranks: RunRanks, kind: str, how: str, door: str
) -> None:
    for ended in run_ranks("other_entry_points", kind=kind, door=door, how=how):
        found = ended.returned
        assert found["bits"] == found["reference"], ended.log
        assert found["summary"] == {"steps": 10, "applied": 9, "skipped": 1, "guard_faults": {}}
        if door == "loop":
            assert "first on rank 1 of 2" in found["headline"]
