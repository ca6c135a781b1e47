"""Questions about units: true, split without a leak, and worked in steps that lead to the answer."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from recipes.units.conversions import (
    PAIRS,
    Question,
    drawn,
    factor,
    is_right,
    questions,
    read_pairs,
    split,
    values,
    worked_steps,
)

from steadygrad import UsageError


@pytest.fixture(scope="module")
def every() -> list[Question]:
    return questions()


def test_factors_are_the_defined_ones() -> None:
    assert factor("inch", "centimeter") == pytest.approx(2.54)
    assert factor("mile", "kilometer") == pytest.approx(1.609344)
    assert factor("pound", "kilogram") == pytest.approx(0.45359237)
    assert factor("day", "hour") == pytest.approx(24)
    assert factor("gallon", "liter") == pytest.approx(3.785411784)


def test_no_unit_pair_and_value_is_on_both_sides(every: list[Question]) -> None:
    training, testing = split(every)
    assert len(training) + len(testing) == len(every)
    assert len(testing) > 1000
    assert not {(q.unit, q.target, q.value) for q in training} & {(q.unit, q.target, q.value) for q in testing}


def test_not_even_the_reverse_of_a_test_question_is_trained_on(every: list[Question]) -> None:
    training, testing = split(every)
    asked = {(q.unit, q.target, f"{q.truth:.9g}") for q in testing}
    reverses = {(q.target, q.unit, f"{float(q.value):.9g}") for q in training}
    assert not asked & reverses
    pairs = {(unit, target) for unit, target, _ in asked}
    assert len(pairs & {(unit, target) for unit, target, _ in reverses}) == 2 * len(PAIRS)


def test_a_leak_would_be_seen() -> None:
    hours, days = Question(Decimal(48), "hour", "day"), Question(Decimal(2), "day", "hour")
    assert hours.key == days.key
    assert hours.for_test == days.for_test
    assert Question(Decimal(3), "day", "hour").key != days.key


def test_both_sides_hold_every_pair_in_both_directions(every: list[Question]) -> None:
    both = {pair for one in PAIRS for pair in (one, one[::-1])}
    for side in split(every):
        assert {(q.unit, q.target) for q in side} == both


def test_the_side_of_a_question_depends_on_nothing_else() -> None:
    assert [q.for_test for q in questions(PAIRS[:3])] == [q.for_test for q in questions(PAIRS)][: 6 * len(values())]


def test_draws_repeat_with_the_seed_and_hold_nothing_twice(every: list[Question]) -> None:
    first, again, other = (drawn(every, 200, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) == 200


def test_written_answers_are_right_and_plain(every: list[Question]) -> None:
    for question in every:
        assert is_right(float(question.answer), question, tolerance=0.006), str(question)
        assert "e" not in question.answer.lower()


def test_worked_steps_end_near_the_truth_and_every_one_is_true(every: list[Question]) -> None:
    met = 0
    for question in every[::7]:
        steps = worked_steps(question).removesuffix(".").split(". ")
        assert is_right(float(steps[-1].rpartition(" = ")[2]), question, tolerance=0.02), str(question)
        for step in steps[1:]:
            left, _, right = step.partition(" = ")
            one, sign, other = left.split(" ")
            truth = float(one) * float(other) if sign == "*" else float(one) + float(other)
            assert float(right) == pytest.approx(truth, rel=0.006), step
            met += 1
    assert met > 1000


def test_the_tolerance_is_five_per_cent() -> None:
    question = Question(Decimal(100), "meter", "centimeter")
    assert is_right(10400.0, question)
    assert is_right(9600.0, question)
    assert not is_right(10600.0, question)
    assert not is_right(None, question)


@pytest.mark.parametrize(
    ("unit", "target", "words"),
    [
        ("florb", "meter", "pint does not know"),
        ("meter", "second", "different things"),
        ("", "meter", "different things"),
        ("1//", "meter", "cannot be read as two units"),
    ],
)
def test_a_unit_that_makes_no_sense_is_told(unit: str, target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        factor(unit, target)


def test_a_file_of_pairs_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "pairs.txt"
    file.write_text("# lengths\nfurlong meter\n\nfathom foot  # at sea\n")
    assert read_pairs(file) == (("furlong", "meter"), ("fathom", "foot"))
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="holds no unit pair"):
        read_pairs(file)
    file.write_text("meter\n")
    with pytest.raises(UsageError, match="not two units"):
        read_pairs(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_pairs(tmp_path / "gone.txt")


def test_no_pairs_and_no_questions_are_told() -> None:
    with pytest.raises(UsageError, match="no unit pairs"):
        questions(())
    with pytest.raises(UsageError, match="no questions left"):
        drawn([], 3, seed=0)
