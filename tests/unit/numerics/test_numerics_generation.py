"""Logits processors: they keep sampling alive, forbid what was forbidden, touch nothing healthy, and report."""

from __future__ import annotations

import copy
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_cases import DTYPES, anything, finite, matrices
from torch import Tensor

from steadygrad.numerics import NumericalStabilityLogitsProcessor, TemperatureLogitsWarper
from steadygrad.numerics.published_findings import Board
from steadygrad.records import Severity
from steadygrad.records.errors import UsageError

IDS = torch.zeros(3, 17, dtype=torch.long)


def quiet(board: Board | None = None, **kwargs: object) -> NumericalStabilityLogitsProcessor:
    return NumericalStabilityLogitsProcessor(report_to=board or Board(), **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_healthy_logits_come_back_as_the_same_tensor(dtype: torch.dtype, board: Board) -> None:
    scores = (torch.randn(3, 50) * 5).to(dtype)
    scores[0, :7] = -math.inf
    before = scores.clone()
    processor, warper = quiet(board), TemperatureLogitsWarper(report_to=board)
    assert processor(IDS, scores) is scores
    assert warper(IDS, scores) is scores
    assert torch.equal(scores, before)
    assert board.take() == ()
    assert processor.counts() == {**dict.fromkeys(processor.counts(), 0), "num_calls": 1}


@settings(max_examples=80, deadline=None)
@given(scores=matrices(anything))
def test_any_row_with_a_token_left_can_be_sampled_and_forbidden_tokens_stay_forbidden(scores: Tensor) -> None:
    before = scores.clone()
    for make in (quiet, lambda: TemperatureLogitsWarper(0.7, report_to=Board())):
        for dtype in DTYPES:
            given_ = scores.to(dtype)
            processor = make()
            made = processor(IDS, given_)
            assert made.dtype == dtype
            forbidden = given_ == -math.inf
            possible = ~forbidden.all(-1)
            # What the division underflowed may be as good as forbidden; what was forbidden must be.
            assert (made[forbidden] == -math.inf).all()
            chances = made.float().softmax(-1)[possible]
            assert chances.isfinite().all()
            if len(chances):
                torch.multinomial(chances, 1)
            bad = (given_.isnan() | (given_ == math.inf)).any(-1)
            assert processor.num_repaired_rows == int(bad.sum())
            assert processor.num_stuck_rows == int((~possible).sum())
    assert torch.equal(scores.nan_to_num(), before.nan_to_num())


@settings(max_examples=80, deadline=None)
@given(scores=matrices(finite))
def test_every_allowed_logit_lies_within_the_limit_afterwards(scores: Tensor) -> None:
    made = quiet()(IDS, scores)
    assert made.isfinite().all()
    assert made.abs().max() <= 30
    untouched = (scores.abs() <= 30).all(-1)
    assert torch.equal(made[untouched], scores[untouched])


@pytest.mark.parametrize("shift", [45.23 - 12.0, -100.0, 3000.0])
def test_moving_a_large_row_within_the_limit_does_not_change_what_is_sampled(shift: float) -> None:
    logits = torch.randn(3, 20_000, dtype=torch.float64) * 4 + shift
    scores = logits.float()
    made = quiet(clip_value=30.0)(IDS, scores)
    assert made.abs().max() <= 30
    assert torch.equal(made.argmax(-1), scores.argmax(-1))
    # A clamp at 30 would tie all of a row that lies above it.
    torch.testing.assert_close(made.double().softmax(-1), scores.double().softmax(-1), rtol=1e-4, atol=1e-9)


def test_log_probabilities_of_a_beam_are_not_shifted() -> None:
    scores = (torch.randn(3, 5000) * 12).log_softmax(-1)
    assert scores.min() < -30
    made = quiet()(IDS, scores)
    inside = scores >= -30
    assert torch.equal(made[inside], scores[inside])
    assert (made[~inside] == -30).all()


def test_without_a_clip_value_finite_logits_of_any_size_are_left_alone(board: Board) -> None:
    scores = torch.tensor([[1e30, -1e30, 45.0]])
    processor = quiet(board, clip_value=None)
    assert processor(IDS, scores) is scores
    made = processor(IDS, torch.tensor([[math.nan, 100.0, 99.0]]))
    assert made.argmax() == 1
    torch.testing.assert_close(made.softmax(-1)[0, 1], torch.tensor(1.0).sigmoid())


def test_what_a_repair_makes_of_each_kind_of_damage() -> None:
    inf, nan = math.inf, math.nan
    scores = torch.tensor([[1.0, 2.0, nan, -inf], [1.0, inf, nan, inf], [nan, nan, -inf, nan]])
    chances = quiet()(IDS, scores).softmax(-1)
    # A NaN becomes the least likely token; the healthy ones keep their odds.
    torch.testing.assert_close(chances[0], torch.tensor([0.2689414, 0.7310586, 1e-8, 0.0]), rtol=1e-5, atol=1e-9)
    # Infinities share the mass.
    torch.testing.assert_close(chances[1], torch.tensor([1e-8, 0.5, 1e-8, 0.5]), rtol=1e-5, atol=1e-9)
    # Nothing is known: even, but for what is forbidden.
    torch.testing.assert_close(chances[2], torch.tensor([1 / 3, 1 / 3, 0.0, 1 / 3]))


def test_the_floor_lies_under_repaired_rows_alone_unless_asked_for() -> None:
    scores = torch.tensor([[29.0, -20.0, 0.0], [29.0, -20.0, math.nan]])
    made = quiet(min_prob=1e-4)(IDS, scores)
    assert torch.equal(made[0], scores[0])
    torch.testing.assert_close(made[1].softmax(-1)[1:], torch.full((2,), 1e-4), rtol=1e-3, atol=0.0)
    everywhere = quiet(min_prob=1e-4, floor_all=True)(IDS, scores[:1])
    torch.testing.assert_close(everywhere.softmax(-1)[0, 1:], torch.full((2,), 1e-4), rtol=1e-3, atol=0.0)


def test_a_floor_under_every_row_of_a_large_vocabulary_costs_what_the_docs_say() -> None:
    scores = torch.full((1, 151_936), -25.0)
    scores[0, 0] = 25.0
    left = quiet(floor_all=True)(IDS, scores).double().softmax(-1)[0, 0]
    assert 1 - float(left) == pytest.approx(151_936e-8, rel=1e-2)


def test_each_repair_is_counted_and_becomes_one_fatal_finding(board: Board) -> None:
    processor = quiet(board)
    sick = torch.zeros(3, 8)
    sick[1, 2:5] = math.nan
    sick[2, 0] = math.inf
    for _ in range(4):
        processor(IDS, sick)
    (found,) = board.take(step=12)
    assert (found.code, found.severity, found.step, found.subject) == ("SY501", Severity.FATAL, 12, "generate")
    assert found.evidence == {"num_nan": 12, "num_inf": 4, "num_rows": 8, "num_calls": 4, "first_position": 17}
    assert "3 NaN and 1 infinite logits in 2 of 3 rows at position 17" in found.detail
    assert processor.num_repaired_calls == 4
    assert processor.num_nan == 12


def test_a_row_with_every_token_forbidden_is_reported_and_gets_the_fallback_if_there_is_one(board: Board) -> None:
    scores = torch.zeros(2, 4)
    scores[1] = -math.inf
    left = quiet(board)(IDS, scores)
    assert torch.equal(left, scores)
    (found,) = board.take()
    assert (found.code, found.severity) == ("SY502", Severity.WARNING)
    made = quiet(board, fallback_token_id=3)(IDS, scores)
    assert made[1].tolist() == [-math.inf, -math.inf, -math.inf, 0.0]
    assert torch.equal(made[0], scores[0])


def test_the_first_repair_is_logged_and_verbose_logs_each(caplog: pytest.LogCaptureFixture) -> None:
    sick = torch.tensor([[math.nan, 0.0]])
    for verbose, times in ((False, 1), (True, 3)):
        caplog.clear()
        processor = quiet(verbose=verbose)
        with caplog.at_level(logging.INFO, "steadygrad.numerics"):
            for _ in range(3):
                processor(IDS, sick)
        assert len(caplog.records) == times
        assert "1 NaN and 0 infinite logits in 1 of 1 rows" in caplog.text
        assert "steady explain SY501" in caplog.text


def test_verbose_says_what_was_clipped_and_to_what(caplog: pytest.LogCaptureFixture) -> None:
    high = torch.tensor([[45.23, 0.0, 1.0], [1.0, 2.0, 3.0]])
    low = torch.tensor([[0.0, -99.5, 1.0]])
    with caplog.at_level(logging.WARNING, "steadygrad.numerics"):  # seen without any set-up of logging
        quiet(verbose=False)(IDS, high)
        assert caplog.text == ""
        processor = quiet(verbose=True)
        processor(IDS, high)
        assert "clipping logits: max=45.23 -> 30.0 (1 of 2 rows at position" in caplog.text
        processor(IDS, low)
    assert "clipping logits: min=-99.50 -> -30.0 (1 of 1 rows" in caplog.text
    assert len(caplog.records) == 2
    assert processor.num_bounded_rows == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.1, 0.7, 2.0])
def test_the_warper_divides_healthy_rows_to_the_bit(dtype: torch.dtype, temperature: float) -> None:
    scores = (torch.randn(3, 40) * 10).to(dtype)
    scores[:, 5] = -math.inf
    made = TemperatureLogitsWarper(temperature, report_to=Board())(IDS, scores)
    assert torch.equal(made, scores / temperature)


def test_the_warper_shifts_a_row_that_the_division_would_overflow(board: Board) -> None:
    scores = torch.tensor([[60_000.0, 59_999.0, -60_000.0, -math.inf], [1.0, 2.0, 3.0, 4.0]]).half()
    made = TemperatureLogitsWarper(0.5, report_to=board)(IDS, scores)
    assert torch.equal(made[1], scores[1] / 0.5)
    assert made[0, :3].isfinite().all()
    assert made[0, 3] == -math.inf
    assert made[0, 0] == 0
    assert board.take() == ()


def test_a_temperature_below_the_minimum_is_raised_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "steadygrad.numerics"):
        warper = TemperatureLogitsWarper(temperature=0.0, min_temperature=0.1)
    assert warper.temperature == 0.1
    assert "do_sample=False" in caplog.text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NumericalStabilityLogitsProcessor(clip_value=0.0), "clip_value=0.0"),
        (lambda: NumericalStabilityLogitsProcessor(min_prob=1.0), "min_prob=1.0"),
        (lambda: TemperatureLogitsWarper(temperature=math.nan), "temperature=nan"),
        (lambda: TemperatureLogitsWarper(min_temperature=0.0), "min_temperature=0.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()  # type: ignore[operator]


def test_an_empty_batch_and_a_copy_of_a_processor_work() -> None:
    processor = copy.deepcopy(NumericalStabilityLogitsProcessor())
    assert processor(IDS[:0], torch.ones(0, 4)).shape == (0, 4)
    assert processor(IDS[:0], torch.ones(3, 0)).shape == (3, 0)


@settings(max_examples=30, deadline=None)
@given(scores=matrices(anything), seed=st.integers(0, 3))
def test_the_two_in_a_row_always_leave_something_to_sample(scores: Tensor, seed: int) -> None:
    torch.manual_seed(seed)
    scores[:, 0] = 1.0  # one token that is allowed
    made = scores
    for processor in (quiet(), TemperatureLogitsWarper(0.3, report_to=Board())):
        made = processor(IDS, made)
    tokens = torch.multinomial(made.softmax(-1), 1)
    assert (scores.gather(1, tokens) != -math.inf).all()
