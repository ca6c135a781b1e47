"""What `steady run` costs does not grow with what else the program has in memory, nor with its other trainings."""

from __future__ import annotations

import copy
import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import steadygrad as sg
from steadygrad.detect.loop import loop_recorder
from steadygrad.diagnosis import diagnose
from steadygrad.diagnosis.isolation.resource_limits import OutOfTime, ResourceLimits
from steadygrad.engine.recovery.reruns import user_state
from steadygrad.integrations.zero_code.hooks import find_models
from steadygrad.integrations.zero_code.look_budget import LookBudget
from steadygrad.integrations.zero_code.rerun import examine_refusal, loop_lines, loop_step

HERE = str(Path(sg.__file__).parent)
MOST_CALLS = 340


def calls_in(run: Callable[[], Any]) -> int:
    """Calls of functions, of Python and of C, while this runs."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def calls_of_ours(run: Callable[[], Any]) -> int:
    """Calls of this package's functions, while this runs."""
    count = 0

    def note(frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        code = frame.f_code
        count += event == "call" and code.co_filename.startswith(HERE) and not code.co_name.startswith("<")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_a_healthy_step_makes_few_calls_of_ours(watching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test of this process may have compiled something, and then hooks stay where they are.
    monkeypatch.setattr(loop_recorder, "_something_is_compiled", lambda: False)
    watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(4, 8), torch.randn(4, 1)

    def step() -> None:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(233):
        step()
    # One that sets a record, or is sampled, makes some more.
    fewest = min(calls_of_ours(step) for _ in range(8))
    assert fewest <= MOST_CALLS, fewest


def trained(data: Any, pick: Callable[[Any, int], torch.Tensor], steps: int = 4) -> int:
    """Calls that some updates take whose lines read this data, after as many to get going."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for step in range(steps):
            x = pick(data, step)
            loss = (model(x) - pick(data, step + 1).sum()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    run()
    return calls_in(run)


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], torch.Tensor]]] = {
    "a list of numbers": (lambda n: list(range(n)), lambda data, i: torch.tensor([data[i : i + 4]]).float()),
    "a table of lists": (
        lambda n: {key: [1.0, 2.0, 3.0, 4.0] for key in range(n)},
        lambda data, i: torch.tensor([data[i]]),
    ),
    "a list of tensors": (lambda n: [torch.ones(1, 4) for _ in range(n)], lambda data, i: data[i]),
    "tensors by name": (lambda n: {key: torch.ones(1, 4) for key in range(n)}, lambda data, i: data[i]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_takes_as_many_calls_beside_much_data_as_beside_little(watching: Any, kind: str) -> None:
    make, pick = KINDS[kind]
    watching()
    little, much = trained(make(2_000), pick), trained(make(40_000), pick)
    assert much < 1.2 * little, (little, much)


def test_making_an_optimizer_takes_as_many_calls_among_many_objects_as_among_few(watching: Any) -> None:
    watching()

    def make() -> None:
        torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.01)

    make()
    few = calls_in(make)
    many = [[number] for number in range(200_000)]  # lists, which the garbage collector knows one by one
    assert calls_in(make) < few + len(many) // 10


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The walks over all living objects in search of models."""
    made: list[type] = []

    def living(kind: type) -> list[Any]:
        made.append(kind)
        return original(kind)

    original: Any = find_models.living
    monkeypatch.setattr(find_models, "living", living)
    return made


def train(model: nn.Module, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return optimizer


def loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


def test_one_walk_over_all_objects_is_enough_for_any_number_of_trainings(watching: Any, walks: list[type]) -> None:
    watch = watching()
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    for make in (lambda: net, lambda: nn.Sequential(nn.Linear(4, 1)), lambda: copy.deepcopy(net), lambda: loaded(net)):
        model = make()
        train(model)
        assert any(root is model for root in watch.models.modules())
    assert len(walks) == 1


def test_a_model_is_found_behind_any_number_of_optimizers_of_bare_tensors(watching: Any, walks: list[type]) -> None:
    watch = watching()
    for _ in range(40):
        torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    assert len(walks) <= 5
    model = nn.Linear(4, 1)
    train(model)
    assert watch.models.modules() == [model]


def test_looks_beyond_the_first_take_a_share_of_the_time() -> None:
    now = 0.0
    budget = LookBudget(2, 0.1, lambda: now)
    for _ in range(2):
        assert budget.begin()
        with budget:
            now += 1.0
    assert not budget.begin()
    now += 18.0
    assert budget.begin()
    with budget, budget:
        now += 1.0
    assert not budget.admits()
    assert (budget.made, budget.left_out, budget.seconds) == (3, 1, 3.0)


def test_of_many_short_trainings_the_first_are_looked_at_and_the_end_says_so(watching: Any) -> None:
    watch = watching()
    watch.sampled._budget = LookBudget(2, 0.0)
    hooks = []
    for _ in range(5):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        kept = train(model)
        hooks.append(watch.sampled._checkers[kept] is not None)
    assert hooks == [True, True, False, False, False]
    notice = watch.finish()["notices"]["looked_at"]
    assert "in 2 of 5 trainings" in notice
    assert "3% of the run's time" in notice


def test_optimizers_of_one_model_are_counted_once_each(watching: Any) -> None:
    """The checker of one is made anew when another begins to train the same model."""
    watch = watching()
    watch.sampled._budget = LookBudget(2, 0.0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}
    for _ in range(6):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for parameter in model.parameters():  # an optimizer for each, made when it is first needed
            if parameter not in optimizers:
                optimizers[parameter] = torch.optim.SGD([parameter], lr=0.01)
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
    assert (watch.sampled._budget.made, watch.sampled._budget.left_out) == (2, 2)


def test_the_rows_of_a_batch_are_searched_without_noting_the_program_each_time(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watching(diagnose="auto")
    noted: list[Any] = []

    class Counted(loop_step.UserState):
        def __init__(self, *args: Any) -> None:
            noted.append(args)
            super().__init__(*args)

    monkeypatch.setattr(loop_step, "UserState", Counted)
    monkeypatch.setattr(loop_lines, "UserState", Counted)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    searches: list[int] = []
    original = diagnose.find_rows

    def find_rows(*args: Any, **kwargs: Any) -> Any:
        before = len(noted)
        found = original(*args, **kwargs)
        searches.append(len(noted) - before)
        return found

    monkeypatch.setattr(diagnose, "find_rows", find_rows)
    for step in range(4):
        x = torch.rand(64, 4)
        x[5 if step == 3 else 0] *= -1.0 if step == 3 else 1.0
        optimizer.zero_grad()
        loss = x.sum(1).reshape(2, -1).log().mean() + model(x).mean()  # rows cannot be read off its result
        loss.backward()
        optimizer.step()
    assert 5 in watch.ledger.first.incidents[0].diagnosis.rows
    assert searches
    assert max(searches) == 0


def one_bad_batch(items: Any = (), *, grows: bool = False) -> nn.Module:
    """Some updates whose lines read a table, one of them refused; a batch that no loader gave."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.rand(8, 4)
        x[5, 1] = math.nan if step == 3 else 0.0
        optimizer.zero_grad()
        if grows:
            items.append(float(step))
        loss = model(x).mean() * (1 + 1e-6 * len(items))
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("most", [0, 1, 2, 4, 9, 15, 30])
def test_all_runs_of_the_lines_for_one_incident_have_one_limit_and_what_was_found_by_then_is_said(
    watching: Any, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    watching()
    expected = one_bad_batch().state_dict()
    made = [0]

    def check(self: ResourceLimits) -> None:
        made[0] += 1
        if made[0] > most:
            raise OutOfTime

    monkeypatch.setattr(ResourceLimits, "check", check)
    watch = watching(diagnose="auto")
    found = one_bad_batch().state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert watch.barrier.faults == {}
    (incident,) = watch.ledger.first.incidents
    said = [incident.diagnosis.because, *incident.diagnosis.notes]
    assert any("time limit of 300 s reached" in line for line in said), said
    assert made[0] <= most + 3


def test_remedies_are_tried_on_one_form_of_a_step_however_many_lines_are_run_again(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watching(diagnose="auto")
    depths: list[str] = []
    original = examine_refusal.diagnose

    def asked(*args: Any, depth: str) -> Any:
        depths.append(depth)
        return original(*args, depth=depth)

    monkeypatch.setattr(examine_refusal, "diagnose", asked)
    one_bad_batch()
    found = watch.ledger.first.incidents[0].diagnosis
    assert (found.cause.slug, found.rows) == ("bad_input", (5,))
    assert depths.count("full") == 1, depths


class Counting(list[Any]):
    """A table that counts how often all of it is read."""

    reads = 0

    def __iter__(self) -> Any:
        type(self).reads += 1
        return super().__iter__()


@pytest.mark.parametrize("grows", [False, True])
def test_a_large_table_is_read_as_often_for_a_long_diagnosis_as_for_a_short_one(
    watching: Any, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that the lines change must be compared after each run; either way it is as before in the end."""
    reads = []
    monkeypatch.setattr(user_state, "_LARGE", 100)
    for depth in ("origin", "auto"):
        table = Counting(map(float, range(300)))
        before = Counting.reads
        watch = watching(diagnose=depth)
        one_bad_batch(table, grows=grows)
        watch.finish()
        watch.stop()
        reads.append(Counting.reads - before)
        assert list(table) == [*map(float, range(300)), *([0.0, 1.0, 2.0, 3.0] if grows else [])]
    assert grows or reads[0] == reads[1], reads
