"""The barrier around a function of the program: it is called exactly once, whatever fails in ours."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from steadygrad.engine.fault_barrier import UserCodeError, boundary
from steadygrad.integrations.loops.patch_barrier import barred, undo_all
from steadygrad.records.errors import TrainingHalted


class Program:
    """A function of the program, and what happened to it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._error = error

    def __call__(self, *args: Any) -> str:
        self.calls.append(args)
        if self._error is not None:
            raise self._error
        return "theirs"


def fails_before(original: Callable[..., Any], *args: Any) -> Any:
    raise ZeroDivisionError


def fails_after(original: Callable[..., Any], *args: Any) -> Any:
    original(*args)
    raise ZeroDivisionError


@pytest.mark.parametrize("ours", [fails_before, fails_after])
def test_a_fault_of_ours_leaves_the_programs_call_and_its_result(ours: Callable[..., Any]) -> None:
    faults: list[Exception] = []
    program = Program()
    assert barred(ours, faults.append)(program, 1, 2) == "theirs"
    assert program.calls == [(1, 2)]
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), StopIteration()])
def test_what_the_program_raises_passes_untouched(error: BaseException) -> None:
    faults: list[Exception] = []
    program = Program(error)
    with pytest.raises(type(error)) as found:
        barred(lambda original, *args: original(*args), faults.append)(program, 1)
    assert found.value is error
    assert (len(program.calls), faults) == (1, [])


def test_an_error_of_the_program_is_not_lost_where_ours_fails_on_its_way() -> None:
    def ours(original: Callable[..., Any]) -> Any:
        try:
            return original()
        finally:
            raise ZeroDivisionError

    faults: list[Exception] = []
    error = KeyError("x")
    with pytest.raises(KeyError) as found:
        barred(ours, faults.append)(Program(error))
    assert found.value is error
    assert len(faults) == 1


def test_an_update_that_ours_failed_to_judge_is_made_only_if_it_may_be() -> None:
    program = Program()
    assert barred(fails_before, lambda fault: None, lambda *args: False)(program, 1) is None
    assert program.calls == []
    assert barred(fails_before, lambda fault: None, lambda *args: True)(program, 1) == "theirs"
    assert program.calls == [(1,)]


def test_a_closure_that_was_evaluated_is_not_evaluated_again() -> None:
    evaluated: list[int] = []

    def closure() -> int:
        evaluated.append(1)
        return len(evaluated)

    def ours(original: Callable[..., Any], given: Callable[[], int]) -> Any:
        given()
        raise ZeroDivisionError

    steps: list[int] = []
    barred(ours, lambda fault: None, lambda *args: True)(lambda given: steps.append(given()), closure)
    assert (evaluated, steps) == ([1], [1])


def test_what_we_raise_on_purpose_passes() -> None:
    def halts(original: Callable[..., Any]) -> Any:
        raise TrainingHalted("ten in a row")

    program = Program()
    with pytest.raises(TrainingHalted):
        barred(halts, lambda fault: None)(program)
    assert program.calls == []


def test_a_generator_that_both_read_is_given_to_both() -> None:
    def ours(original: Callable[..., Any], items: Any) -> Any:
        assert list(items) == [1, 2]
        raise ZeroDivisionError

    assert barred(ours, lambda fault: None, listed=True)(list, (number for number in (1, 2))) == [1, 2]


def test_a_public_method_hands_its_fault_over_and_passes_the_programs() -> None:
    class Handle:
        def __init__(self) -> None:
            self.faults: list[Exception] = []

        def failed(self, fault: Exception) -> None:
            self.faults.append(fault)

        @boundary
        def look(self, error: Exception) -> None:
            raise error

    handle, theirs = Handle(), KeyError("x")
    assert handle.look(ZeroDivisionError()) is None
    assert [type(fault) for fault in handle.faults] == [ZeroDivisionError]
    with pytest.raises(KeyError) as found:
        handle.look(UserCodeError(theirs))
    assert found.value is theirs


def test_a_step_of_undoing_that_fails_does_not_keep_the_others_from_being_taken() -> None:
    taken: list[int] = []
    faults: list[Exception] = []
    undo_all([lambda: taken.append(1), lambda: 1 // 0, lambda: taken.append(2)], faults.append)
    assert taken == [2, 1]
    assert len(faults) == 1


@pytest.mark.parametrize("error", [StopIteration, KeyError])
def test_an_error_that_passes_through_keeps_nothing_in_memory(error: type[Exception]) -> None:
    """A loader's iterator ends every epoch with StopIteration: its workers end when the program drops it, not later."""

    class Loader:
        def give(self) -> None:
            raise error

    loader = Loader()
    gone = weakref.ref(loader)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with contextlib.suppress(error):
            barred(lambda original, *args: original(*args))(Loader.give, loader)
        del loader
        assert gone() is None
    finally:
        if collecting:
            gc.enable()
