"""The model's call on an early batch is made again a few times, and the run does not notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.early_checks.repeatable_call import why_not_repeat

KEPT: list[int] = []


class Language(nn.Module):
    """Predicts the next token from a window; keeps statistics, counters and a list of its own."""

    def __init__(self, *, leaks: bool) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(16, 12), nn.Conv1d(12, 12, 3), nn.Linear(12, 16)
        self.norm, self.drop, self.leaks = nn.BatchNorm1d(12), nn.Dropout(0.2), leaks
        self.calls, self.seen = 0, []

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(ids.shape)
        values = self.embed(ids).transpose(1, 2)
        values = F.pad(values, (1, 1) if self.leaks else (2, 0))
        return self.head(self.drop(self.norm(self.mix(values))).transpose(1, 2))


def train(guarded: bool, *, leaks: bool = False, steps: int = 6) -> tuple[Language, Any]:
    torch.manual_seed(0)
    model = Language(leaks=leaks)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    guard = sg.attach(optimizer, model=model) if guarded else None
    for _ in range(steps):
        ids = torch.randint(0, 16, (6, 10))
        optimizer.zero_grad()
        logits = model(ids)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
    if guard is not None:
        guard.close()
    return model, guard


def test_a_run_that_is_looked_at_ends_with_the_same_bits_counters_and_lists() -> None:
    (plain, _), (looked_at, guard) = train(False), train(True)
    assert plain.state_dict().keys() == looked_at.state_dict().keys()
    for name, values in plain.state_dict().items():
        assert torch.equal(values, looked_at.state_dict()[name]), name
    assert (plain.calls, plain.seen) == (looked_at.calls, looked_at.seen)
    assert guard.summary()["guard_faults"] == {}
    assert guard.incidents == []


def test_a_model_that_sees_its_target_is_named_at_an_early_update() -> None:
    _, guard = train(True, leaks=True)
    assert [incident.diagnosis.cause.slug for incident in guard.incidents] == ["target_leak"]
    assert guard.incidents[0].first_step <= 2


class Speaks(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        print("called")
        return super().forward(given)


class Keeps(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        KEPT.append(1)
        return super().forward(given)


def _hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    return model


def _replaced() -> nn.Module:
    model = nn.Linear(2, 2)
    model.forward = lambda given: given  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("model", [Speaks(2, 2), Keeps(2, 2), _hooked(), _replaced()], ids=str)
def test_a_model_whose_call_could_be_noticed_is_not_called_again(model: nn.Module) -> None:
    assert why_not_repeat(model) is not None
    assert why_not_repeat(nn.Sequential(nn.Linear(2, 2), model)) is not None


def test_an_ordinary_model_may_be_called_again() -> None:
    assert why_not_repeat(Language(leaks=False)) is None
