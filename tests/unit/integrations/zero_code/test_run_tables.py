"""Samples of loops without a loader: rows of a larger tensor, by their place or by their values."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn

from steadygrad.integrations.loops.loop_slice import LoopSlice
from steadygrad.integrations.loops.sliced_batches import with_named_batches
from steadygrad.integrations.zero_code.hooks.tensor_batches import SourceTensors, rows_of_view


@pytest.mark.parametrize(("first", "last", "step"), [(0, 4, 1), (6, 9, 1), (1, 9, 3), (9, 10, 1)])
def test_a_view_says_which_rows_it_is(first: int, last: int, step: int) -> None:
    table = torch.randn(10, 3, 2)
    assert rows_of_view(table[first:last:step], table) == tuple(range(first, last, step))


def test_a_view_of_a_view_says_which_rows_of_either_it_is() -> None:
    whole = torch.randn(12, 3)
    part = whole[4:]
    assert rows_of_view(part[2:5], part) == (2, 3, 4)
    assert rows_of_view(part[2:5], whole) == (6, 7, 8)


@pytest.mark.parametrize("change", [lambda t: t[:, :2], lambda t: t.T, lambda t: t.reshape(5, 4, 3), lambda t: t])
def test_a_view_of_all_rows_or_across_rows_has_none(change) -> None:  # type: ignore[no-untyped-def]
    table = torch.randn(20, 3)
    assert rows_of_view(change(table), table) is None


@pytest.mark.parametrize("change", [lambda t: t[4:8, 1:], lambda t: t[4:8].unbind(1)[2], lambda t: t[4:8, 0]])
def test_the_same_part_of_some_rows_says_which_rows_it_is_of(change) -> None:  # type: ignore[no-untyped-def]
    table = torch.randint(0, 9, (20, 3))
    assert rows_of_view(change(table), table) == (4, 5, 6, 7)


def test_a_table_that_the_loop_held_from_the_first_round_on_is_known_where_no_call_shows_it() -> None:
    tables, data = SourceTensors(), torch.randint(0, 9, (20, 3))
    for _ in range(3):
        made_now = torch.randn(20, 3)
        tables.next_round()
        made_now = torch.randn(20, 3)
    assert tables.rows_of([data[4:8]]) == (4, 5, 6, 7)
    assert tables.rows_of([made_now[4:8]]) is None


class Memory:
    """Where an agent keeps what it has seen."""

    def __init__(self) -> None:
        self.seen = torch.randn(20, 3)


def test_rows_that_were_drawn_from_a_memory_or_a_dictionary_of_the_program_are_looked_up_there() -> None:
    tables, memory, columns = SourceTensors(), Memory(), {"x": torch.randn(20, 3)}
    assert tables.rows_of([memory.seen[[7, 2, 11]]]) == (7, 2, 11)
    assert tables.rows_of([columns["x"][[4, 19]]]) == (4, 19)
    assert tables.rows_of([torch.randn(2, 3)]) is None


def test_rows_of_a_tensor_that_is_new_in_this_round_say_nothing() -> None:
    tables = SourceTensors()
    made_now = torch.randn(20, 3)
    tables.called((made_now[4:8],))
    assert tables.rows_of([made_now[4:8]]) is None
    tables.next_round()
    assert tables.rows_of([made_now[4:8]]) == (4, 5, 6, 7)


def test_copied_rows_are_looked_up_by_their_values_a_nan_too() -> None:
    data = torch.randn(30, 3)
    data[11, 1] = float("nan")
    batch = data[[7, 11, 2]]
    assert SourceTensors().rows_of([batch]) == (7, 11, 2)
    assert data.shape == (30, 3)


def test_rows_that_occur_twice_are_not_guessed_at() -> None:
    data = torch.randn(30, 3)
    data[5] = data[6]
    assert SourceTensors().rows_of([data[[1, 5]]]) is None
    assert data.shape == (30, 3)


def _lines(source: str, *reads: str) -> LoopSlice:
    tree = ast.parse(source)
    code: CodeType = compile(tree, "loop.py", "exec")
    return LoopSlice(code, code, reads, 1, 1, "loop.py", tree)


def test_a_batch_cut_inside_a_line_gets_a_name() -> None:
    x, y = torch.randn(10, 2), torch.randn(10)
    lines = _lines("out = (x[i:i + n] * 2).sum(1) - y[i:i + n]", "x", "y", "i", "n")
    found = with_named_batches(lines, {"x": x, "y": y, "i": 4, "n": 3})
    assert found is not None
    named, values = found
    assert sorted(values) == sorted(named.reads)
    assert sorted(tuple(value.shape) for value in values.values()) == [(3,), (3, 2)]
    exec(named.code, names := dict(values))
    assert torch.equal(names["out"], (x[4:7] * 2).sum(1) - y[4:7])


@pytest.mark.parametrize(
    "source",
    [
        "out = x[pick()]",  # a call is not made
        "for j in range(2):\n    out = x[j:j + 1]",  # the lines change the index themselves
        "x = x + 1\nout = x[0:2]",  # they change the tensor
        "out = [x[k] for k in range(3)]",  # a name of the comprehension
        "out = sizes['a']",  # no tensor
        "x[0:2] = 1",  # written, not read
    ],
)
def test_anything_else_is_left_as_it_is(source: str) -> None:
    taken = {"x": torch.randn(4, 2), "sizes": {"a": 1}, "pick": lambda: 1 / 0}
    assert with_named_batches(_lines(source, *taken), taken) is None


def test_batches_cut_out_of_a_drawn_order_name_what_was_drawn(watching: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(24, 3), nn.Linear(3, 1))
    watch = watching(diagnose="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scales = torch.ones(24)
    scales[17] = 0.0
    for _ in range(2):
        order = torch.randperm(24)
        for start in range(0, 24, 4):
            users = order[start : start + 4]
            optimizer.zero_grad()
            (model(users).squeeze(1) / scales[users]).square().mean().backward()
            optimizer.step()
    incidents = [incident for log in watch.ledger.log for incident in log.incidents]
    assert incidents[0].diagnosis.sample_ids == ("17",)
    assert watch.barrier.faults == {}
