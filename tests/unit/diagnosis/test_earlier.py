"""Behind a guard the clinic goes back in time: what no step made came from outside; rates are tried from the start."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.records import Diagnosis


class Cells(nn.Module):
    """Keeps the mean of what fell into each of its cells: of an empty one that is 0 / 0, and no loss shows it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x) + self.mean.sum()
        cells = torch.stack([x[:, 0] > 0, x[:, 0] <= 0]).float()
        with torch.no_grad():
            self.mean.copy_((cells @ x[:, 1]) / cells.sum(1))
        return out


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def data(count: int = 12) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [(x := torch.randn(8, 4, generator=random), x[:, :1]) for _ in range(count)]


def guarded(between: Any, optimizer: Any = torch.optim.SGD, rate: float = 0.02, **options: Any) -> Any:
    """A run whose owner calls `between(model, optimizer, index)` before every step, up to its first incident."""
    model = net()
    stepping = optimizer(model.parameters(), lr=rate)
    guard = sg.Guard(model, stepping, squared, scheduler=options.pop("scheduler", lambda _: None)(stepping), **options)
    for index, batch in enumerate(data()):
        between(model, stepping, index)
        guard.step(batch)
        if guard.incidents:
            break
    assert not guard.summary()["guard_faults"]
    return guard, model


def diagnosed(guard: Any) -> Diagnosis:
    found = guard.incidents[0].diagnosis
    assert isinstance(found, Diagnosis)
    assert found.cause is not None
    return found


def flip(model: Any, _optimizer: Any, index: int) -> None:
    if index == 6:
        with torch.no_grad():
            model[3].weight[0, 2] = 3e38


def test_a_weight_that_no_step_gave_is_a_fault_from_outside_and_restoring_it_is_verified() -> None:
    guard, _ = guarded(flip, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5))
    found = diagnosed(guard)
    assert found.cause is not None
    assert found.cause.slug == "transient_fault"
    assert found.phase == "state"
    assert found.origin is not None
    assert found.origin.tensor == "3.weight"
    assert "restore_weight" in [trial.remedy.slug for trial in found.remedies]
    guard.close()


def test_going_back_leaves_no_trace() -> None:
    def state(diagnose: str) -> list[Tensor]:
        guard, model = guarded(flip, torch.optim.Adam, diagnose=diagnose)
        moments = [v for s in guard.optimizers[0].state.values() for v in s.values()]
        kept = [*model.state_dict().values(), *moments, torch.get_rng_state()]
        guard.close()
        return [tensor.detach().clone() for tensor in kept]

    examined, untouched = state("auto"), state("off")
    assert len(examined) == len(untouched)
    assert all(torch.equal(a, b) for a, b in zip(examined, untouched, strict=True))


def raise_the_rate(_model: Any, optimizer: Any, index: int) -> None:
    if index == 6:
        optimizer.param_groups[0]["lr"] = 40.0


def test_a_rate_that_was_raised_is_tried_from_before_the_rise_and_clipping_at_the_end_is_no_cure() -> None:
    guard, _ = guarded(raise_the_rate)
    found = diagnosed(guard)
    assert found.cause is not None
    assert found.cause.slug == "lr_divergence"
    verified = [trial.remedy.slug for trial in found.remedies]
    assert "lr_down" in verified
    assert not {"clip", "skip_batch"} & set(verified)
    guard.close()


def test_a_batch_that_is_out_of_line_alone_is_not_called_a_divergence() -> None:
    model = net()
    batches = data(40)
    batches[36] = (batches[36][0], batches[36][1] * 1e4)
    policy = sg.Policy.named("balanced").but(refuse_spikes=True)
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.02), squared, policy=policy) as guard:
        for batch in batches:
            guard.step(batch)
    found = guard.incidents[0].diagnosis
    assert guard.incidents[0].symptom == "spike"
    assert found is not None
    assert found.cause is None or found.cause.slug == "bad_input"


def test_memory_that_was_bad_at_the_start_is_told_from_memory_that_went_bad() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 1))
    with torch.no_grad():
        model[0].weight[4] = torch.nan
    batches = [torch.randint(0, 4, (4, 2)) for _ in range(6)]
    batches[4][1, 0] = 4
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b).square().mean()) as guard:
        for batch in batches[:4]:
            guard.step(batch)
        with pytest.raises(sg.TrainingHalted):  # there is no good state to go back to
            guard.step(batches[4])
    found = diagnosed(guard)
    assert found.cause is not None
    assert found.cause.slug == "uninitialised"
    assert found.rows == (1,)


class StartsFromData(nn.Module):
    """Sets its scale from the first batch it sees, and writes it into a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(3)), nn.Linear(3, 1)
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1.0 / x.std(0, correction=0))
                self.ready.fill_(True)
        return self.out(x * self.scale)


def test_a_weight_that_the_step_itself_wrote_is_traced_to_the_line_that_wrote_it() -> None:
    model = StartsFromData()
    batch = torch.randn(6, 3)
    batch[:, 1] = 2.0
    guard = sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b).square().mean())
    with contextlib.suppress(sg.TrainingHalted):  # whether it goes on is the policy's business
        guard.step(batch)
    found = diagnosed(guard)
    assert found.phase == "forward"
    assert found.cause is not None
    assert found.cause.slug == "zero_division"
    assert found.origin is not None
    assert "x.std(0" in (found.origin.code_line or "")
    guard.close()


def test_a_buffer_that_the_step_before_left_bad_is_located_in_that_step() -> None:
    torch.manual_seed(0)
    model = Cells()
    guard = sg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), squared)
    for index, (x, y) in enumerate(data()):
        guard.step((x.abs() if index == 4 else x, y))
        if guard.incidents:
            break
    found = diagnosed(guard)
    assert (index, found.cause.slug, found.origin.op, found.origin.phase) == (5, "zero_division", "div", "forward")
    assert found.origin.code_line == "self.mean.copy_((cells @ x[:, 1]) / cells.sum(1))"
    assert "eps" in {trial.remedy.slug for trial in found.trials if trial.verified}
    assert found.rows is None  # they would be rows of another batch
