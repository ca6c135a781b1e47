"""What ranks tell each other every step is the same on all of them, and a rank that is out of step is caught by all."""

from __future__ import annotations

import pytest
from rank_launch import RunRanks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("world", [2, 4])
def test_the_vector_comes_out_alike_on_every_rank_and_names_the_bad_one(run_ranks: RunRanks, world: int) -> None:
    told = [ended.returned for ended in run_ranks("vectors", world)]
    assert all(each == told[0] for each in told)
    mean = sum(range(world)) / world
    total = float(sum(range(world)))
    healthy, *bad, huge, lost, same_timeout = told[0]
    assert healthy == [[repr(mean), "2.0", "1.0", "4.0"], [], [total] * 3]
    for rank, (terms, bad_ranks, _) in enumerate(bad):
        assert terms[0] == "nan"
        assert bad_ranks == [rank]
    assert len(bad) == world
    assert float(huge[0][0]) == pytest.approx(3e38)  # summed in double precision, a large loss stays finite
    assert huge[1:] == [[], 0]
    assert lost == 1
    assert same_timeout


def test_questions_have_one_answer(run_ranks: RunRanks) -> None:
    told = [ended.returned for ended in run_ranks("questions", 2)]
    assert told[0] == told[1]
    assert told[0][:4] == [True, False, False, True]
    assert [each["rank"] for each in told[0][4]] == [0, 1]
    assert told[0][4][1]["long"] == "x" * 10
    assert told[0][4][0]["number"] == "nan"


def test_guards_that_are_not_made_alike_are_refused_on_every_rank(run_ranks: RunRanks) -> None:
    for ended in run_ranks("differing_guards", 2):
        assert ended.told["raised"] == "UsageError"
        assert "accumulate is 1 on rank 0 and 2 on rank 1" in ended.message


@pytest.mark.parametrize("how", ["skips a batch", "decides otherwise", "names other terms", "asks a question"])
def test_a_rank_that_is_out_of_step_is_caught_by_all_at_once(run_ranks: RunRanks, how: str) -> None:
    world = 4 if how == "skips a batch" else 2
    for ended in run_ranks("out_of_step", world, how=how):
        assert ended.status == 24, ended.log
        assert "The ranks are out of step: rank 0: batch 3, step 3, terms loss" in ended.message
        assert f"rank {world - 1}: " in ended.message


def test_a_killed_rank_is_missed_by_the_others_and_by_name(run_ranks: RunRanks) -> None:
    left, killed = run_ranks("one_leaves", 2, how="killed")
    assert killed.status == -9
    assert left.status == 24, left.log
    assert "lost the other ranks at batch 3, step 3" in left.message
    assert "no message from rank 1: killed or hanging" in left.message


def test_the_reason_of_a_rank_that_stops_reaches_the_others(run_ranks: RunRanks) -> None:
    left, stopped = run_ranks("one_leaves", 2, how="raises")
    assert stopped.told["raised"] == "ValueError"
    assert left.status == 24
    assert "rank 1 stopped at step 3: ValueError: no such file" in left.message


def test_a_slow_rank_is_waited_for(run_ranks: RunRanks) -> None:
    assert [ended.returned for ended in run_ranks("one_is_slow", 2)] == [[[0.5]], [[0.5]]]


@pytest.mark.slow
def test_a_rank_that_is_stuck_is_given_up_after_the_process_groups_own_timeout(run_ranks: RunRanks) -> None:
    left, stuck = run_ranks("one_is_stuck", 2, timeout=15)
    assert stuck.status == 0
    assert left.status == 24, left.log
    assert "lost the other ranks at batch 2, step 2" in left.message
    assert "no message from rank 1: killed or hanging" in left.message


def test_a_guard_that_one_rank_never_makes_is_one_sentence_and_no_hang(run_ranks: RunRanks) -> None:
    idle, waiting = run_ranks("one_never_makes_a_guard", 2)
    assert idle.status == 0
    assert waiting.status == 24, waiting.log
    assert "waited 0.5 s for rank 0 to make one too" in waiting.message


def test_ranks_that_train_separate_models_are_left_alone_and_informed(run_ranks: RunRanks) -> None:
    first, second = run_ranks("strangers", 2)
    assert first.returned == [4, 0, []]
    applied, skipped, ranks = second.returned
    assert (applied, skipped, set(ranks)) == (4, 1, {1})
    for ended in (first, second):
        assert "this rank decides alone" in ended.log


def test_fsdp1_is_refused_with_what_to_use_instead(run_ranks: RunRanks) -> None:
    for ended in run_ranks("flat_shards", 2):
        assert ended.told["raised"] == "UsageError", ended.log
        assert "fully_shard" in ended.message
