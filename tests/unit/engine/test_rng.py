"""Random states are taken cheaply where they have not moved, and always as they are."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from steadygrad.engine.state.rng import put_rng, take_rng

MOVES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "random": random.random,
    "gauss": lambda: random.gauss(0.0, 1.0),
    "a second gauss": lambda: (random.gauss(0.0, 1.0), random.gauss(0.0, 1.0)),
    "seed": lambda: random.seed(7),
    "setstate": lambda: random.setstate(random.Random(3).getstate()),
    "shuffle": lambda: random.shuffle(list(range(2000))),
    "numpy": lambda: numpy.random.rand(),
    "another thread": lambda: _in_thread(random.random),
}


def _in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_what_is_taken_is_the_state_as_it_is(move: str) -> None:
    kept = random.getstate(), numpy.random.get_state()
    try:
        for _ in range(3):
            take_rng()
            MOVES[move]()
            taken = take_rng()
            assert taken.python == random.getstate()
            expected = [random.random(), random.gauss(0.0, 1.0), float(numpy.random.rand())]
            put_rng(taken)
            assert [random.random(), random.gauss(0.0, 1.0), float(numpy.random.rand())] == expected
    finally:
        random.setstate(kept[0])
        numpy.random.set_state(kept[1])


def test_an_unmoved_state_is_not_taken_twice() -> None:
    assert take_rng().python is take_rng().python
