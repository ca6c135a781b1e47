"""Random states are taken cheaply where they have not moved, and always as they are."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import BaseTorchFunctionMode

from steadygrad.engine.state import rng
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
    "torch": lambda: torch.rand(1),
    "torch, many": lambda: torch.rand(5000),
    "torch, whole rounds": lambda: torch.rand(2 * 624),
    "a normal number of torch": lambda: torch.randn(1),
    "a second normal number of torch": lambda: (torch.randn(1), torch.randn(1)),
    "a seed of torch": lambda: torch.manual_seed(7),
    "a state of torch": lambda: torch.set_rng_state(torch.Generator().manual_seed(3).get_state()),
    "torch in another thread": lambda: _in_thread(lambda: torch.rand(1)),
}


def _in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_what_is_taken_is_the_state_as_it_is(move: str) -> None:
    kept = random.getstate(), numpy.random.get_state(), torch.get_rng_state()

    def drawn() -> list[float]:
        of_torch = float(torch.randn(1)), float(torch.rand(1))
        return [random.random(), random.gauss(0.0, 1.0), float(numpy.random.rand()), *of_torch]

    try:
        for _ in range(3):
            take_rng()
            MOVES[move]()
            taken = take_rng()
            assert taken.python == random.getstate()
            assert torch.equal(taken.cpu, torch.get_rng_state())
            expected = drawn()
            put_rng(taken)
            assert drawn() == expected
    finally:
        random.setstate(kept[0])
        numpy.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


@pytest.mark.parametrize("move", [move for move in MOVES if "torch" in move])
def test_the_state_is_taken_as_it_is_where_its_memory_is_not_found(move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng._TorchRng, "SEARCHED", 0)
    monkeypatch.setattr(rng, "_torch", rng._TorchRng())
    test_what_is_taken_is_the_state_as_it_is(move)
    assert rng._torch._memory is None
    assert take_rng() is take_rng()


def test_an_unmoved_state_is_not_taken_twice() -> None:
    take_rng()
    assert take_rng() is take_rng()


def test_states_that_are_kept_lie_together_and_apart_from_the_heap() -> None:
    kept = [take_rng() for _ in range(1000)]
    assert len({state.cpu.untyped_storage().data_ptr() for state in kept}) <= 10


def test_memory_of_states_that_are_gone_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = rng._Pages()
    monkeypatch.setattr(rng, "_pages", pages)
    kept = [take_rng()]
    for number in range(2000):
        torch.rand(1)
        kept = [*kept[-200:], take_rng()] if number % 3 else [kept[0], *kept[-100:]]
    gc.collect()
    assert len(pages._all) <= 6


def test_every_state_that_is_kept_stays_as_it_was() -> None:
    before = torch.get_rng_state()
    try:
        kept, drawn = [], []
        for number in range(700):
            kept.append(take_rng())
            drawn.append(torch.rand(2))
            if number % 2:
                del kept[number // 2 : number // 2 + 1], drawn[number // 2 : number // 2 + 1]
        for state, numbers in zip(kept, drawn, strict=True):
            put_rng(state)
            assert torch.equal(torch.rand(2), numbers)
    finally:
        torch.set_rng_state(before)


def test_threads_do_not_share_a_state() -> None:
    taken: list[Any] = []

    def take() -> None:
        for _ in range(300):
            torch.rand(1)
            taken.append(((state := take_rng()), state.cpu.clone()))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1200
    assert all(torch.equal(state.cpu, then) for state, then in taken)


@pytest.mark.parametrize("mode", [FakeTensorMode, torch.inference_mode, BaseTorchFunctionMode])
def test_states_are_taken_and_restored_inside_a_mode_of_the_program(mode: Any) -> None:
    before = torch.get_rng_state()
    outside = take_rng()
    torch.rand(1)
    try:
        with mode():
            put_rng(outside)
            inside = take_rng()
        assert torch.equal(inside.cpu, before)
        torch.rand(1)
        put_rng(inside)
        assert torch.equal(torch.get_rng_state(), before)
    finally:
        torch.set_rng_state(before)
