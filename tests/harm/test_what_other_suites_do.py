"""What the test suites of other projects do with optimizers and trainings, and what a guard must survive there."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from harm_runs import alone, finite, under_steady_run
from torch import Tensor, nn

import steadygrad as sg


class KeepsItsOwnState(torch.optim.Optimizer):
    """Counts under a key that is no parameter, as torch allows, and makes a NaN out of one finite gradient."""

    def __init__(self, parameters: Any, bad: int) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.bad, self.calls = bad, itertools.count()  # a clock of the test's own, which nothing can set back

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        count = self.state.setdefault("count", torch.zeros(1))  # type: ignore[call-overload]
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index,call-overload]
        fails = next(self.calls) == self.bad
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=math.nan if fails else group["lr"])
        count += 1
        return loss


def own_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - 1).pow(2).mean()


@pytest.mark.parametrize("how", ["Guard", "attach", "attach, closure"])
def test_state_that_belongs_to_no_parameter_is_undone_with_the_update_that_made_a_nan(how: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = KeepsItsOwnState(model.parameters(), bad=2)
    batches = [torch.randn(8, 4) for _ in range(6)]
    guard: Any = sg.Guard(model, optimizer, own_loss) if how == "Guard" else sg.attach(optimizer, model=model)
    with guard:
        for batch in batches:
            if how == "Guard":
                guard.step(batch)
                continue

            def closure(batch: Tensor = batch) -> Tensor:
                optimizer.zero_grad()
                loss = own_loss(model, batch)
                loss.backward()
                return loss

            if how == "attach":
                closure()
                optimizer.step()
            else:
                optimizer.step(closure)
        guard.settle()
        summary = guard.summary()
        assert not summary.get("guard_faults")
        assert (summary["applied"], summary["skipped"], len(guard.incidents)) == (5, 1, 1)
    assert finite(model.parameters())
    assert optimizer.state["steps"] == 5  # type: ignore[index]
    assert float(optimizer.state["count"]) == 5.0  # type: ignore[index,arg-type]


SHORT_TRAININGS_THAT_ARE_NAN = """
import torch
torch.manual_seed(0)
for trial in range(2):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) * float("nan")).mean().backward()
        optimizer.step()
    print("trained", tuple(model.weight.shape))
"""


def test_a_short_training_that_never_was_finite_ends_as_it_would_alone(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = alone(SHORT_TRAININGS_THAT_ARE_NAN, tmp_path / "plain")
    ours = under_steady_run(SHORT_TRAININGS_THAT_ARE_NAN, tmp_path, "--diagnose", "off")
    assert (ours.code, ours.stdout) == (plain.code, plain.stdout)
    assert len(ours.incidents) == 2
    assert "0 of 40 updates applied" in ours.stderr


SEARCH_FOR_THE_LARGEST_RATE = """
import copy, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
before = copy.deepcopy(model.state_dict())
for step in range(120):
    optimizer.param_groups[0]["lr"] *= 1.2
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
assert not torch.isfinite(model(torch.ones(1, 4)).pow(2)).all(), "this search ends before the loss overflows"
model.load_state_dict(before)
optimizer.param_groups[0]["lr"] = 0.1
model(torch.randn(8, 4)).pow(2).mean().backward()
optimizer.step()
print("found", optimizer.param_groups[0]["lr"])
"""


def test_a_search_for_the_largest_learning_rate_may_end_in_non_finite_losses(tmp_path: Path) -> None:
    ours = under_steady_run(SEARCH_FOR_THE_LARGEST_RATE, tmp_path, "--diagnose", "off")
    assert (ours.code, ours.stdout) == (0, "found 0.1\n"), ours.stderr[-1500:]
    assert ours.incidents
    refused = sum(incident.last_step - incident.first_step + 1 for incident in ours.incidents)
    assert refused > 10
