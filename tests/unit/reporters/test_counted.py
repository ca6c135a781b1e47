"""Numbers stand beside the right form of their word."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from steadygrad.checkup.trials.precision_trial import _named
from steadygrad.reporters.run_data.counted import are, counted, ran_again, were


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 batches are, were"), (1, "1 batch is, was"), (2000, "2,000 batches are, were")]
)
def test_one_is_singular_and_everything_else_is_plural(number: int, said: str) -> None:
    assert f"{counted(number, 'batch', 'batches')} {are(number)}, {were(number)}" == said
    assert counted(number, "step").endswith("step" if number == 1 else "steps")


@pytest.mark.parametrize(
    ("last", "said"), [(6, "line 6 of train.py was run again"), (1009, "lines 6 to 1009 of train.py were run again")]
)
def test_a_range_of_one_line_is_one_line(last: int, said: str) -> None:
    assert ran_again(SimpleNamespace(first_line=6, last_line=last, filename="train.py")) == said


def test_a_module_whose_name_is_a_number_is_called_a_module() -> None:
    assert _named(["0", "head"], mended=True) == "with module 0, head in float32 it fits"
