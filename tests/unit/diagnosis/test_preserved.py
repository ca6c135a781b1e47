"""What user objects count and collect is as before, whatever ran again in between."""

from __future__ import annotations

import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from steadygrad import Guard
from steadygrad.engine.recovery.preserved_attributes import preserved_attributes, record_attributes
from steadygrad.engine.recovery.reruns.user_state import UserState


class Bag:
    def __init__(self) -> None:
        self.items = [1, 2]
        self.table: dict[str, Any] = {"loss": [0.5], "deep": {"names": {"a"}}}
        self.names = {"x"}
        self.recent: deque[int] = deque([1, 2, 3], maxlen=3)
        self.count, self.rate, self.name = 3, 0.5, "bag"
        self.tensor: Any = torch.ones(2)
        self.counter = Counter("aab")
        self.groups: defaultdict[str, list[int]] = defaultdict(list, {"a": [1]})
        self.order = OrderedDict([("first", 1), ("second", 2)])


def contents(bag: Bag) -> dict[str, Any]:
    return {
        name: (type(value), list(value.items()) if isinstance(value, dict) else value)
        for name, value in vars(bag).items()
    }


def test_everything_plain_that_an_object_holds_is_restored_in_place() -> None:
    bag, fresh = Bag(), Bag()
    before, tensor = dict(vars(bag)), bag.tensor
    fresh.tensor = tensor
    with preserved_attributes([bag]):
        bag.items.append(9)
        bag.table["loss"].append(0.1)
        bag.table["deep"]["names"].add("b")
        bag.table["new"] = 1
        bag.names.clear()
        bag.recent.append(7)
        bag.count, bag.rate, bag.name, bag.tensor = 4, 1.0, "other", torch.zeros(3)
        bag.counter.update("zz")
        bag.groups["b"].append(2)
        bag.order.move_to_end("first")
        bag.extra = 1  # type: ignore[attr-defined]
        del bag.rate
    assert contents(bag) == contents(fresh)
    assert all(vars(bag)[name] is value for name, value in before.items())
    assert bag.recent.maxlen == 3
    assert list(bag.order) == ["first", "second"]


def test_a_replaced_list_is_the_old_one_again() -> None:
    bag = Bag()
    items = bag.items
    with preserved_attributes([bag]):
        bag.items = [*bag.items, 5]
        items.append(6)
    assert bag.items is items
    assert items == [1, 2]


def test_restored_after_an_exception_too() -> None:
    bag = Bag()

    def fail() -> None:
        bag.items.append(1)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), preserved_attributes([bag]):
        fail()
    assert bag.items == [1, 2]


def test_a_module_stands_for_the_modules_inside_it_and_keeps_its_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].log = []
    weight = model[0].weight
    with preserved_attributes([model]):
        model[1].log.append(1)  # type: ignore[union-attr, operator]
        model[1].register_forward_hook(lambda *_: None)
        model.eval()
        with torch.no_grad():
            weight.fill_(2.0)
    assert model[1].log == []
    assert not model[1]._forward_hooks
    assert model.training
    assert model[0].weight is weight
    assert bool((weight == 2).all())


def test_a_container_that_is_too_long_to_copy_is_cut_to_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("steadygrad.engine.recovery.preserved_attributes"), "MAX_ENTRIES", 3)
    bag = Bag()
    bag.items = [1, 2, 3, 4, 5]
    with preserved_attributes([bag]):
        bag.items += [6, 7]
    assert bag.items == [1, 2, 3, 4, 5]


def test_objects_that_contain_themselves_or_have_no_attributes_are_no_trouble() -> None:
    bag = Bag()
    bag.table["self"] = bag.table
    with preserved_attributes([bag, 3, "text", None]):
        bag.table["more"] = 1
    assert "more" not in bag.table


@pytest.mark.parametrize("mapped", [False, True], ids=["in memory", "in a file"])
def test_arrays_hold_what_they_held(mapped: bool, tmp_path: Path) -> None:
    array = numpy.memmap(tmp_path / "visits", "i4", "w+", shape=(3,)) if mapped else numpy.zeros(3, "i4")
    named = numpy.zeros(2).view(Named)
    bag, model = Bag(), nn.Linear(2, 2)
    objects = numpy.array([None, "x"])
    bag.table["visits"], model.table = [array, objects], named  # type: ignore[assignment]
    with preserved_attributes([bag, model]):
        array += 1
        named[0] = numpy.nan
        objects[0] = 5
    assert array.tolist() == [0, 0, 0]
    assert named.tolist() == [0, 0]
    assert objects.tolist() == [None, "x"]
    state = UserState([[array], named])
    array += 1
    named += 1
    state.restore()
    assert (array.tolist(), named.tolist()) == ([0, 0, 0], [0, 0])


class Named(numpy.ndarray):
    """A kind of the program's own."""


class Collecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.losses: list[float] = []
        self.calls = 0
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.inner(x)
        self.last = out
        self.losses.append(float(out.detach().sum()))
        return out


def test_a_diagnosis_leaves_no_entry_in_what_the_model_collects() -> None:
    torch.manual_seed(0)

    def collected(diagnose: str) -> tuple[int, int, bool]:
        model = Collecting()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with Guard(model, optimizer, lambda m, b: m(b).pow(2).mean(), diagnose=diagnose) as guard:
            for step in range(8):
                batch = torch.randn(6, 4)
                if step == 4:
                    batch[2, 1] = float("nan")
                guard.step(batch)
        assert guard.summary()["skipped"] == 1
        return model.calls, len(model.losses), model.last is not None

    assert collected("auto") == collected("off")


@pytest.mark.parametrize("keep", [lambda model: record_attributes([model]), lambda model: UserState([model]).restore])
def test_a_large_table_costs_no_python_call_for_each_entry(keep: Callable[[nn.Module], Callable[[], None]]) -> None:
    """Every replay of a diagnosis keeps and restores it."""
    model = nn.Linear(1, 1)
    words = [str(number) for number in range(20_000)]
    model.words, model.table = words, {number: (word,) for number, word in enumerate(words)}  # type: ignore[assignment]
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        restore = keep(model)
        restore()
    finally:
        sys.setprofile(before)
    assert calls < 12_000
    words.append("more")
    model.table[3] = ("changed",)  # type: ignore[index, operator]
    restore()
    assert (len(words), model.table[3]) == (20_000, ("3",))  # type: ignore[index]
