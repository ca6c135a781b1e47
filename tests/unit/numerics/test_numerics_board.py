"""The board: what is posted is found once, by one taker, however many threads post."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

import steadygrad as sg
from steadygrad.numerics.published_findings import MEANINGS, Board
from steadygrad.records import Finding, Severity


def finding(subject: str = "generate", **evidence: int) -> Finding:
    return Finding(
        code="SY501", slug="non_finite_logits", severity=Severity.FATAL, step=0, subject=subject, detail="first",
        evidence=evidence,
    )  # fmt: skip


def test_what_was_posted_is_taken_once_with_the_takers_step_and_rank(board: Board) -> None:
    board.post(finding(num_nan=3))
    (found,) = board.take(step=41, rank=2)
    assert (found.step, found.rank, found.code, found.evidence) == (41, 2, "SY501", {"num_nan": 3})
    assert board.take() == ()


def test_the_same_trouble_again_is_added_up_in_one_finding(board: Board) -> None:
    for position in (7, 8, 9):
        board.post(finding(num_nan=2, first_position=position))
    board.post(finding(subject="elsewhere", num_nan=1))
    first, second = board.take()
    assert first.evidence == {"num_nan": 6, "first_position": 7}
    assert second.evidence == {"num_nan": 1}


def test_findings_from_many_threads_are_all_counted(board: Board) -> None:
    def post() -> None:
        for _ in range(200):
            board.post(finding(num_nan=1))
            board.count("empty_mask", torch.tensor(True))

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fatal, note = board.take()
    assert fatal.evidence["num_nan"] == 800
    assert note.evidence["num_times"] == 800


def test_counts_are_notes_that_say_what_happened(board: Board) -> None:
    board.count("zero_vector", torch.tensor([True, False, True]))
    board.count("empty_mask", torch.tensor(False))
    (found,) = board.take(step=3)
    assert (found.code, found.severity, found.subject, found.step) == ("SY503", Severity.NOTE, "zero_vector", 3)
    assert found.detail == f"2 times: {MEANINGS['zero_vector']}"


def test_looking_at_the_counts_takes_nothing_away(board: Board) -> None:
    board.count("empty_mask", torch.tensor(True))
    assert board.counts() == {"empty_mask": 1}
    assert board.counts() == {"empty_mask": 1}
    assert len(board.take()) == 1
    board.count("empty_mask", torch.tensor(True))
    assert board.counts() == {"empty_mask": 2}


def test_ten_thousand_uncollected_counts_hold_few_tensors(board: Board) -> None:
    flag = torch.tensor(True)
    for _ in range(10_000):
        board.count("empty_mask", flag)
    assert sum(len(pending) for pending in board._pending.values()) <= 256
    assert board.counts() == {"empty_mask": 10_000}


def test_a_thousand_kinds_of_trouble_leave_a_bounded_board(board: Board) -> None:
    for number in range(1000):
        board.post(finding(subject=str(number)))
    assert len(board.take()) == 64


def test_a_step_that_is_only_run_again_can_be_left_out(board: Board) -> None:
    with board.muted():
        board.post(finding())
        board.count("empty_mask", torch.tensor(True))
        other = threading.Thread(target=lambda: board.post(finding(subject="another thread")))
        other.start()
        other.join()
    assert [found.subject for found in board.take()] == ["another thread"]
    board.post(finding())
    assert len(board.take()) == 1


def test_the_process_has_one_board_and_the_losses_report_there() -> None:
    board = sg.numerics.board()
    assert board is sg.numerics.board()
    board.take()
    sg.numerics.masked_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool))
    assert [found.subject for found in board.take()] == ["empty_mask"]


def test_every_public_name_resolves_and_is_listed() -> None:
    assert sg.numerics.__all__ == sorted(sg.numerics.__all__)
    assert len(sg.numerics.__all__) >= 20
    for name in sg.numerics.__all__:
        assert getattr(sg.numerics, name).__name__ == name
        assert name in dir(sg.numerics)
    with pytest.raises(AttributeError, match="no attribute 'softmaxx'"):
        sg.numerics.softmaxx  # noqa: B018


def test_the_package_and_its_board_can_be_imported_without_torch() -> None:
    script = (
        "import sys, steadygrad as sg; sg.numerics.board().take(); assert 'torch' not in sys.modules;"
        "sg.numerics.NumericalStabilityLogitsProcessor; assert 'torch' in sys.modules;"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
