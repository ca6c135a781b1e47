"""Ranks that raise, die, dawdle or miss a step: nobody hangs, all say why, and no weight differs."""

from __future__ import annotations

import json
import sys

import pytest
from rank_launch import RunRanks

from steadygrad.commands import main
from steadygrad.journal import read_incidents
from steadygrad.journal.steps.step_reader import read_steps

pytestmark = pytest.mark.distributed


def test_an_exception_on_one_rank_reaches_its_user_and_is_told_to_the_other(run_ranks: RunRanks) -> None:
    other, raised = run_ranks("trouble", how="raises")
    assert raised.told["raised"] == "KeyError"
    assert other.status == 24, other.log
    assert "rank 1 stopped: KeyError: 'a column that is not there'" in other.message


def test_an_exception_that_one_rank_swallows_is_caught_at_its_next_step(run_ranks: RunRanks) -> None:
    for ended in run_ranks("trouble", how="swallows"):
        assert ended.status == 24, ended.log
        assert "The ranks are out of step" in ended.message
        assert "rank 0: batch 4" in ended.message
        assert "rank 1: batch 5" in ended.message


def test_the_weights_are_the_same_on_all_ranks_after_one_fell_out_of_step(run_ranks: RunRanks) -> None:
    first, second = (ended.returned for ended in run_ranks("trouble", how="swallows", keep=True))
    assert first["weights"] == second["weights"]
    assert first["finite"]
    assert second["finite"]


def test_a_killed_rank_leaves_the_others_with_a_sentence_and_a_whole_journal(run_ranks: RunRanks) -> None:
    other, killed = run_ranks("trouble", how="killed")
    assert killed.status == -9
    assert other.status == 24, other.log
    assert "no message from rank 1: killed or hanging" in other.message
    steps = [record for record in read_steps(other.folder / "run") if record.rank == 0]
    assert [record.step for record in steps] == [0, 1, 2]


def test_a_slow_rank_changes_nothing(run_ranks: RunRanks) -> None:
    slow = [ended.returned for ended in run_ranks("trouble", how="dawdles", keep=True)]
    quick = [ended.returned for ended in run_ranks("trouble", how="nothing", keep=True)]
    assert slow == quick
    assert slow[0]["weights"] == slow[1]["weights"]


def test_a_loss_fn_that_returns_none_on_one_rank_is_one_sentence(run_ranks: RunRanks) -> None:
    other, none = run_ranks("trouble", how="none")
    assert none.told["raised"] == "UsageError"
    assert "loss_fn returned None on rank 1" in none.message
    assert other.status == 24
    assert "loss_fn returned None on rank 1" in other.message


def test_a_guard_that_fails_between_forward_and_backward_stops_all_with_the_reason(run_ranks: RunRanks) -> None:
    other, broken = run_ranks("trouble", how="guard breaks")
    assert broken.status == 24, broken.log
    assert "The guard of rank 1 failed (ZeroDivisionError" in broken.message
    assert other.status == 24, other.log
    assert "the guard of rank 1 failed: ZeroDivisionError" in other.message


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_guard_that_fails_before_forward_or_after_backward_stands_down_with_all_others(
    run_ranks: RunRanks, when: str
) -> None:
    first, second = (ended.returned for ended in run_ranks("trouble", how=f"guard breaks {when}", keep=True))
    assert first == second
    assert first["standing_down"]
    assert first["finite"]  # a bad batch of rank 0 came later, and all of them still refused it
    assert first["step_count"] == 7


def test_a_rank_with_more_batches_than_the_others_is_told_so(run_ranks: RunRanks) -> None:
    longer, shorter = run_ranks("trouble", how="ends early")
    assert shorter.status == 0
    assert longer.status == 24, longer.log
    assert "rank 1 closed its guard after 3 batches" in longer.message


def test_all_ranks_write_one_incident_with_a_part_of_each_inside(
    run_ranks: RunRanks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run_ranks("one_incident")
    run = ended[0].folder / "run"
    [incident] = read_incidents(run)
    assert incident.number == 1
    assert incident.capsule == "incidents/0001/rank1/capsule.safetensors"  # where it began
    folder = run / "incidents" / "0001"
    assert {path.name for path in folder.iterdir()} == {
        "incident.json", "incident-rank1.json", "capsule.json", "capsule.safetensors", "rank1"
    }  # fmt: skip
    assert {path.name for path in (folder / "rank1").iterdir()} == {"capsule.json", "capsule.safetensors"}
    second = json.loads((folder / "incident-rank1.json").read_text())
    assert second["capsule"] == "incidents/0001/rank1/capsule.safetensors"
    assert second["headline"] == incident.headline
    sizes = [(part / "capsule.safetensors").stat().st_size for part in (folder, folder / "rank1")]
    assert sizes[1] > sizes[0]  # all ranks have the same weights, so they are kept once
    monkeypatch.setattr(sys, "argv", ["steady", "replay", str(run), "--entry", "rank_training:make"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1  # the trouble is there again, in one process
    assert "DX401 bad_input" in capsys.readouterr().out
    losses = {(record.rank, record.step): record for record in read_steps(run)}
    assert {rank for rank, _ in losses} == {0, 1}
    for step in range(8):
        mine, theirs = losses[0, step], losses[1, step]
        assert mine.applied is theirs.applied is (step != 5)
        if mine.applied:
            assert mine.loss == theirs.loss  # the mean is what was judged; beside it is each rank's own
            assert mine.loss == pytest.approx((mine.terms["rank_loss"] + theirs.terms["rank_loss"]) / 2)


def test_a_resumed_run_continues_at_the_newest_checkpoint_that_all_ranks_have(run_ranks: RunRanks) -> None:
    whole = [ended.returned for ended in run_ranks("checkpoints", kind="fsdp2", stop=None)]
    run_ranks("checkpoints", kind="fsdp2", stop=9, folder_name="again")
    again = run_ranks("checkpoints", kind="fsdp2", stop=None, folder_name="again", lose=True)
    for ended, reference in zip(again, whole, strict=True):
        assert ended.returned["began_at"] == 4  # rank 1 had lost its part of the newest one, of step 8
        assert ended.returned["bits"] == reference["bits"]
        assert ended.returned["skipped"] == reference["skipped"] == 1
    four = run_ranks("checkpoints", 4, kind="fsdp2", stop=None, folder_name="again")
    assert all("was written by 2 ranks, and this run has 4" in ended.message for ended in four)
