"""Questions about units with their true answers, split so that nothing of the test can have been seen in training.

A question is a unit pair and a value: "Convert 47 mile to kilometer." Factors come from `pint`. Values have one or two
significant digits, from 1 to 990; answers are written with three. Which side a question is on is read off a hash of
its unit pair and its quantity, so it is the same for every seed, size and machine, and a question stands on the same
side as its own reverse ("2 day to hour" and "48 hour to day" are one fact).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cache
from pathlib import Path
from typing import Any

from steadygrad import UsageError

Pair = tuple[str, str]

METRIC: tuple[Pair, ...] = (
    ("kilometer", "meter"), ("meter", "centimeter"), ("centimeter", "millimeter"), ("kilogram", "gram"),
    ("tonne", "kilogram"), ("liter", "milliliter"),
)  # fmt: skip
PAIRS: tuple[Pair, ...] = METRIC + (
    ("gram", "milligram"), ("bar", "kilopascal"), ("megabyte", "kilobyte"), ("byte", "bit"), ("inch", "centimeter"),
    ("foot", "meter"), ("foot", "inch"), ("yard", "meter"), ("mile", "kilometer"), ("pound", "kilogram"),
    ("ounce", "gram"), ("pound", "ounce"), ("gallon", "liter"), ("cup", "milliliter"), ("hour", "minute"),
    ("minute", "second"), ("hour", "second"), ("day", "hour"), ("week", "day"), ("mile/hour", "kilometer/hour"),
    ("meter/second", "kilometer/hour"), ("kilocalorie", "kilojoule"),
)  # fmt: skip
TEST_SHARE = 0.15
TOLERANCE = 0.05
"""An answer this close to the truth is right, as in the reports' benchmark."""


@dataclass(frozen=True, slots=True)
class Question:
    value: Decimal
    unit: str
    target: str

    @property
    def factor(self) -> float:
        return factor(self.unit, self.target)

    @property
    def truth(self) -> float:
        return float(self.value) * self.factor

    @property
    def answer(self) -> str:
        return written(self.truth)

    def __str__(self) -> str:
        return f"Convert {written(self.value)} {self.unit} to {self.target}."

    @property
    def key(self) -> str:
        """The same for a question and its reverse: the two units, and the quantity in the first of them."""
        first, second = sorted((self.unit, self.target))
        quantity = float(self.value) if self.unit == first else float(self.value) * factor(self.unit, first)
        return f"{first} {second} {written(quantity)}"

    @property
    def for_test(self) -> bool:
        number = int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:4], "big")
        return number < TEST_SHARE * 2**32


def is_right(answer: float | None, question: Question, *, tolerance: float = TOLERANCE) -> bool:
    return answer is not None and abs(answer - question.truth) <= tolerance * abs(question.truth)


def worked_steps(question: Question) -> str:
    """The way to the answer, a digit of the value at a time: "1 mile = 1.61 kilometer. 40 * 1.61 = 64.4. ..." """
    factor_said = written(question.factor)
    places = [Decimal(digit).scaleb(place) for place, digit in _digits(question.value) if digit]
    parts = [_rounded(place * Decimal(factor_said)) for place in places]
    steps = [f"1 {question.unit} = {factor_said} {question.target}."]
    steps += [f"{written(place)} * {factor_said} = {written(part)}." for place, part in zip(places, parts, strict=True)]
    if len(parts) == 2:
        steps.append(f"{written(parts[0])} + {written(parts[1])} = {written(sum(parts))}.")
    return " ".join(steps)


def written(number: float | Decimal | int) -> str:
    """Three significant digits in plain writing: 0.00621, 75.7, 1230000."""
    text = f"{_rounded(Decimal(repr(number)) if isinstance(number, float) else Decimal(number)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@cache
def factor(unit: str, target: str) -> float:
    """How many of `target` are one `unit`, from pint."""
    import pint

    registry = _registry()
    try:
        return float(registry.Quantity(1.0, unit).to(target).magnitude)
    except pint.UndefinedUnitError as error:
        raise UsageError(f"{error.args[0] if error.args else unit!r} is a unit that pint does not know.") from None
    except pint.DimensionalityError:
        raise UsageError(f"{unit} cannot be converted to {target}: they measure different things.") from None
    except (pint.PintError, AssertionError, ValueError, TypeError):
        raise UsageError(f"{unit!r} to {target!r} cannot be read as two units.") from None


def questions(pairs: Sequence[Pair] = PAIRS) -> list[Question]:
    """Every question there is about these pairs, in both directions."""
    if not pairs:
        raise UsageError("There are no unit pairs, so there is nothing to train on or to ask.")
    both = [each for pair in pairs for each in (pair, pair[::-1])]
    return [Question(value, unit, target) for unit, target in both for value in values()]


def split(every: Iterable[Question]) -> tuple[list[Question], list[Question]]:
    """The questions to train on, and those to test with."""
    train: list[Question] = []
    test: list[Question] = []
    for question in every:
        (test if question.for_test else train).append(question)
    return train, test


def drawn(pool: Sequence[Question], count: int | None, *, seed: int) -> list[Question]:
    """So many of them in random order, each at most once; all for None."""
    if not pool or count == 0:
        raise UsageError("There are no questions left to draw from: name more unit pairs, or ask for a sample at all.")
    return random.Random(seed).sample(list(pool), min(count if count is not None else len(pool), len(pool)))


def values() -> list[Decimal]:
    """1 to 99, their tenths and their tens: 1, 1.1, ..., 9.9, 10, 11, ..., 99, 100, 110, ..., 990."""
    wanted = {Decimal(number).scaleb(place) for number in range(1, 100) for place in (-1, 0, 1)}
    return sorted({value.normalize() for value in wanted if value >= 1})


def read_pairs(path: str | Path) -> tuple[Pair, ...]:
    """Two units a line; every pair is tried once, so that a typing error is told before anything is trained."""
    try:
        lines = [line.split("#")[0].split() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The unit pairs in {path} cannot be read: {error}.") from None
    found = [tuple(words) for words in lines if words]
    if not found:
        raise UsageError(f"{path} holds no unit pair: write two units a line, such as: mile kilometer.")
    for words in found:
        if len(words) != 2:
            raise UsageError(f"{path}: {' '.join(words)!r} is not two units.")
        factor(*words)
    return tuple((words[0], words[1]) for words in found)


@cache
def _registry() -> Any:
    try:
        import pint
    except ImportError:
        raise UsageError("The true factors come from the pint package: pip install pint.") from None
    return pint.UnitRegistry()


def _rounded(number: Decimal) -> Decimal:
    return Context(prec=3, rounding=ROUND_HALF_EVEN).plus(number)


def _digits(value: Decimal) -> list[tuple[int, int]]:
    """Place and digit, largest first: 4.7 is [(0, 4), (-1, 7)]."""
    _, digits, exponent = value.as_tuple()
    return [(int(exponent) + len(digits) - 1 - number, digit) for number, digit in enumerate(digits)]
