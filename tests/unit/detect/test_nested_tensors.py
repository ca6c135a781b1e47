"""Tensors are found in nested batches, and looking for them does not grow with data of the program's own."""

from __future__ import annotations

from typing import Any

import torch

from steadygrad.detect.tensors.living_objects import living
from steadygrad.detect.tensors.nested_tensors import LONG, first_tensor_in, named_tensors_in, tensors_in


class Counted(list[Any]):
    """A list that counts how many of its items are taken."""

    taken = 0

    def __iter__(self) -> Any:
        for item in super().__iter__():
            self.taken += 1
            yield item


def test_every_tensor_of_a_nested_batch_is_found_with_its_key() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    batch = {"x": a, "parts": [b, (c, 3)], "name": "first"}
    assert [id(t) for t in tensors_in(batch)] == [id(a), id(b), id(c)]
    assert [name for name, _ in named_tensors_in(batch)] == ["x", "parts.0", "parts.1.0"]


def test_a_long_list_of_tensors_is_found_whole() -> None:
    many = [torch.ones(1) for _ in range(10 * LONG)]
    assert len(tensors_in({"many": many})) == len(many)
    assert len(list(named_tensors_in(many))) == len(many)


def test_a_tensor_behind_long_lists_of_words_is_found() -> None:
    here = torch.ones(1)
    batch = {"names": ["a"] * 10_000, "rows": [[1, 2]] * 10_000, "x": here}
    assert tensors_in(batch) == [here]
    assert first_tensor_in(batch) is here


def test_of_a_long_list_of_numbers_only_the_ends_are_looked_at() -> None:
    numbers = Counted(range(100_000))
    assert tensors_in({"ids": numbers}) == []
    assert first_tensor_in(numbers) is None
    assert numbers.taken == 0  # its ends are cut out, and nothing walks it


def test_a_list_that_holds_itself_ends() -> None:
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    assert tensors_in(round_and_round) == []
    assert first_tensor_in(round_and_round) is None


def test_living_objects_of_a_class_are_found_whatever_its_metaclass_says() -> None:
    class Odd(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError("a class was compared")

    class Thing(metaclass=Odd):
        pass

    class Below(Thing):
        pass

    kept = [Thing(), Below()]
    assert {id(thing) for thing in living(Thing)} == {id(thing) for thing in kept}
