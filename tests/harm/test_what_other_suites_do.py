"""What the test suites of other projects do with optimizers and trainings, and what a guard must survive there."""

from __future__ import annotations

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
        self.bad, self.calls = bad, [0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        count = self.state.setdefault("count", torch.zeros(1))  # type: ignore[call-overload]
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index,call-overload]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=math.nan if self.calls[0] == self.bad else group["lr"])
        count += 1
        self.calls[0] += 1
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
