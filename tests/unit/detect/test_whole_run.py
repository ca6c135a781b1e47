"""What only a whole training shows: a group that never had a rate, and an average that is computed and kept nowhere."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.loop.whole_run import idle_groups
from steadygrad.detect.loop.whole_run.average_lines import line_of_average
from steadygrad.detect.loop.whole_run.idle_groups import IdleGroups, as_drawn


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    inputs = [torch.randn(16, 20) for _ in range(count)]
    return [(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()) for x in inputs]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    count: int = 30,
    after: Callable[[int], object] = lambda number: None,
) -> list[str]:
    """The causes that are named; no fault of ours may occur."""
    with sg.attach(optimizer, model=model) as guard:
        for number, (x, y) in enumerate(batches(count)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            after(number)
    assert guard.summary()["guard_faults"] == {}
    return [incident.diagnosis.cause.slug for incident in guard.incidents if incident.diagnosis is not None]


# -- a group without a rate


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: nn.Linear(20, 24),
        lambda: nn.Conv2d(3, 16, 5),
        lambda: nn.Embedding(40, 16),
        lambda: nn.LSTM(12, 24),
        lambda: nn.GRU(12, 24),
        lambda: nn.TransformerEncoderLayer(32, 2, 64),
        lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)),
    ],
)
def test_weights_that_torch_has_drawn_are_known(drawn: Callable[[], nn.Module]) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        assert as_drawn(list(drawn().parameters()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_weights_that_were_trained_are_known(seed: int, rate: float) -> None:
    torch.manual_seed(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for x, y in batches(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert not as_drawn(list(model[0].parameters()))
    assert not as_drawn([torch.zeros(20, 20)])
    assert not as_drawn([torch.zeros(20)])


def without_rate(model: nn.Sequential, rate: float = 0.0) -> torch.optim.Optimizer:
    body, head = [*model[:4].parameters()], [*model[4].parameters()]
    return torch.optim.AdamW([{"params": body, "lr": rate}, {"params": head}], lr=1e-2)


def test_drawn_weights_in_a_group_that_never_has_a_rate_are_named_at_the_end() -> None:
    torch.manual_seed(0)
    model = net()
    assert train(model, without_rate(model)) == ["wrong_param_group_lr"]


def test_a_factor_of_zero_for_one_group_is_named_at_the_end() -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = without_rate(model, rate=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0 * step, lambda step: 1.0])
    assert train(model, optimizer, after=lambda number: schedule.step()) == ["wrong_param_group_lr"]


def test_a_group_that_waits_for_its_turn_is_left_alone() -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = without_rate(model)

    def unfreeze(number: int) -> None:
        if number == 24:
            optimizer.param_groups[0]["lr"] = 1e-3

    assert train(model, optimizer, after=unfreeze) == []


def test_weights_that_were_trained_before_may_stay_without_a_rate() -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in batches(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert train(model, without_rate(model)) == []


def test_a_short_training_and_one_that_ends_with_an_error_are_left_alone() -> None:
    torch.manual_seed(0)
    model = net()
    assert train(model, without_rate(model), count=15) == []
    optimizer, guards = without_rate(model), []

    def stops() -> None:
        with sg.attach(optimizer, model=model) as guard:
            guards.append(guard)
            for x, y in batches(30):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stops()
    assert not guards[0].vitals


# -- an average that is kept nowhere

_REBOUND = """
    def update(decay):
        for s, p in zip(ema.parameters(), model.parameters()):
            s = decay * s + (1 - decay) * p
"""
THROWN_AWAY = [
    _REBOUND,
    """
    for (name, s), p in zip(ema.named_parameters(), model.parameters()):
        if p.requires_grad:
            s = s.mul(0.99).add(p, alpha=0.01)
    """,
    """
    for s, p in zip(ema.parameters(), model.parameters()):
        s.mul(0.99).add(p, alpha=0.01)
    """,
    """
    for s, p in zip(ema.parameters(), model.parameters()):
        torch.lerp(s, p, 0.01)
    """,
    """
    for s, p in zip(ema.parameters(), model.parameters()):
        s.data = s.data.clone()
        decay * s.data + (1 - decay) * p.data
    """,
    """
    def update(self, model):
        for name, p in model.named_parameters():
            old = self.shadow[name]
            old = self.decay * old + (1 - self.decay) * p.data
    """,
    """
    def update():
        state = ema.state_dict()
        for name, p in model.state_dict().items():
            state[name] = 0.99 * state[name] + 0.01 * p
    """,
]
KEPT = [
    """
    for s, p in zip(ema.parameters(), model.parameters()):
        s.data = decay * s.data + (1 - decay) * p.data
    """,
    """
    for s, p in zip(ema.parameters(), model.parameters()):
        s.mul_(decay).add_(p, alpha=1 - decay)
    """,
    """
    for s, p in zip(ema.parameters(), model.parameters()):
        s.copy_(decay * s + (1 - decay) * p)
    """,
    """
    for name, p in model.named_parameters():
        old = self.shadow[name]
        old = self.decay * old + (1 - self.decay) * p.data
        self.shadow[name] = old
    """,
    """
    def update():
        state = ema.state_dict()
        for name, p in model.state_dict().items():
            state[name] = 0.99 * state[name] + 0.01 * p
        ema.load_state_dict(state)
    """,
    """
    def update():
        for name, p in model.state_dict().items():
            shadow[name] = 0.99 * shadow[name] + 0.01 * p
    """,
    """
    total = 0
    for s, p in zip(ema.parameters(), model.parameters()):
        total = total + 0.5 * (s - p).norm()
    """,
    """
    def mean(models):
        for s, p in zip(models[0].parameters(), models[1].parameters()):
            s = 0.5 * s + 0.5 * p
            yield s
    """,
    """
    for loss, weight in zip(losses, weights):
        loss = weight * loss + (1 - weight) * old
    """,
    "def broken(:",
]


@pytest.mark.parametrize("source", THROWN_AWAY)
def test_an_average_that_is_thrown_away_is_read_off_the_source(source: str) -> None:
    assert line_of_average(textwrap.dedent(source)) > 0


@pytest.mark.parametrize("source", KEPT)
def test_an_average_that_is_kept_and_other_sums_are_healthy(source: str) -> None:
    assert line_of_average(textwrap.dedent(source)) == 0


@torch.no_grad()
def lost(average: nn.Module, model: nn.Module) -> None:
    for s, p in zip(average.parameters(), model.parameters(), strict=True):
        s = 0.9 * s + 0.1 * p


@torch.no_grad()
def follows(average: nn.Module, model: nn.Module) -> None:
    for s, p in zip(average.parameters(), model.parameters(), strict=True):
        s.lerp_(p, 0.1)


class Shadow:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(parameter, alpha=1 - self.decay)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def test_a_copy_that_stays_while_its_average_is_thrown_away_is_named() -> None:
    torch.manual_seed(0)
    model = net()
    average = copy.deepcopy(model).requires_grad_(False)
    assert train(model, adam(model), after=lambda number: lost(average, model)) == ["ema_never_updated"]


@pytest.mark.parametrize(("decay", "causes"), [(1.0, ["ema_never_updated"]), (0.999, [])])
def test_weights_that_are_written_and_stay_are_named(decay: float, causes: list[str]) -> None:
    torch.manual_seed(0)
    model = net()
    average = Shadow(model, decay)
    assert train(model, adam(model), after=lambda number: average.update(model)) == causes


def test_a_copy_that_follows_or_is_never_written_in_a_program_that_keeps_its_averages_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = net()
    average, reference = copy.deepcopy(model), copy.deepcopy(model).requires_grad_(False)
    assert train(model, adam(model), after=lambda number: follows(average, model)) == []
    monkeypatch.setattr("steadygrad.detect.loop.whole_run.unmoved_copies.averages_thrown_away", lambda: "")
    assert train(reference, adam(reference.requires_grad_(True))) == []


def test_on_a_device_nothing_is_read_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, groups = net(), IdleGroups()
    groups.reads = False
    optimizer = without_rate(model)
    read = []
    monkeypatch.setattr(idle_groups, "as_drawn", lambda weights: bool(read.append(len(weights)) or True))
    for x, y in batches(25):
        F.cross_entropy(model(x), y).backward()
        groups.before_update(optimizer)
        optimizer.step()
        groups.after_update([group["lr"] for group in optimizer.param_groups])
    assert read == []
    assert groups.holds(list(model.parameters()))
    assert groups.at_the_end() == (0,)
    assert read == [4]
