"""Silent problems under `steady run`: found by the sampled checks, confirmed by running the loop's lines again."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, dtype: torch.dtype = torch.float32) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator).to(dtype)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()


def test_updates_too_small_for_bfloat16_weights_are_an_incident_with_a_cause(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    train(model, optimizer, 8, torch.bfloat16)
    incidents = watch.ledger.first.incidents
    assert [incident.diagnosis.cause.slug for incident in incidents] == ["lost_update"]
    assert watch.ledger.first.ledger.skipped == 0


def test_a_healthy_training_is_sampled_and_nothing_is_reported(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    train(model, torch.optim.Adam(model.parameters(), lr=1e-2), 14)
    assert watch.ledger.first.incidents == []
    assert not any(part._forward_hooks for part in list(model.modules())[1:])  # the hooks of a sampled step are gone


def test_sampled_steps_change_no_bit(watching: Any) -> None:
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 14)
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = weights()
    watching(diagnose="auto")
    assert all(map(torch.equal, plain, weights()))


class Run:
    """A training in the style of a class that owns everything."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def fit(self, steps: int) -> None:
        for _ in range(steps):
            x = torch.randn(8, 4)
            self.optimizer.zero_grad()
            self.loss = self.model(x).pow(2).mean()
            self.loss.backward()
            self.optimizer.step()
            self.schedule.step()


def test_a_training_that_has_ended_is_not_kept_when_the_next_one_begins(watching: Any) -> None:
    watching(diagnose="auto")
    first = Run()
    first.fit(12)
    gone = [weakref.ref(first.optimizer), weakref.ref(first.model)]
    gc.collect()
    gc.disable()  # memory of a device is free when the program lets go, not when Python looks for cycles
    try:
        del first
        second = Run()
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
    second.fit(3)


def test_a_training_that_goes_on_after_another_optimizer_was_made_keeps_its_good_states(watching: Any) -> None:
    watch = watching()
    outer, inner = Run(), nn.Linear(4, 1)
    kept = []
    for _ in range(6):
        train(inner, torch.optim.SGD(inner.parameters(), lr=0.1), 0)
        outer.fit(1)
        kept.append(watch.past.steps)
    assert kept[5][: len(kept[2])] == kept[2]  # after the first round it is known that they take turns
    assert watch.past_trainings.in_turn


def test_an_optimizer_made_in_the_middle_of_a_step_does_not_end_it(watching: Any) -> None:
    watch = watching(diagnose="auto")
    run = Run()
    run.fit(3)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    x = torch.randn(8, 4)
    x[0, 0] = float("nan")
    run.optimizer.zero_grad()
    loss = run.model(x).pow(2).mean()
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    loss.backward()
    run.optimizer.step()
    assert other is not None
    assert [incident.diagnosis.cause.slug for incident in watch.ledger.first.incidents] == ["bad_input"]
    assert all(torch.equal(before[name], value) for name, value in run.model.state_dict().items())  # statistics too


def test_a_model_that_is_copied_or_pickled_while_it_is_sampled_carries_no_hook_that_works(watching: Any) -> None:
    import copy
    import pickle

    from steadygrad.detect.sampled.activation_probe import ActivationProbe

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    probe = ActivationProbe(model)
    probe.attach()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(torch.randn(2, 4))
        seen = probe._seen
        assert seen is not None
        assert seen.ran == set()
    probe.detach()


def causes(watch: Any) -> list[tuple[int, str]]:
    found = [incident for log in watch.ledger.loops for incident in log.log.incidents]
    return [(incident.first_step, incident.diagnosis.cause.slug) for incident in found]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("clip, backward", ["clipped_before_backward"]), ("backward, clip", []), ("backward, clip, backward, clip", [])],
)
def test_clipping_before_backward_is_named(watching: Any, order: str, expected: list[str]) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        for what in order.split(", "):
            if what == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                (model(torch.randn(8, 4)) - torch.randn(8, 2)).pow(2).mean().backward()
        optimizer.step()
    assert [cause for _, cause in causes(watch)] == expected


def test_frozen_parts_that_are_clipped_in_vain_are_left_alone(watching: Any) -> None:
    watch = watching()
    torch.manual_seed(0)
    model, frozen = nn.Linear(4, 2), nn.Linear(4, 4).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        model(frozen(torch.randn(8, 4))).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(frozen.parameters(), 1.0)
        optimizer.step()
    assert causes(watch) == []


class Normalised(torch.utils.data.Dataset[Any]):
    """Writes into what it keeps."""

    def __init__(self) -> None:
        self.kept = torch.randn(64, 4) * 3 + 2

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.kept[index].sub_(2).div_(3)


def test_what_loaders_deliver_is_looked_at(watching: Any) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Normalised(), 16)
    for _ in range(3):
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
    assert causes(watch) == [(8, "samples_rewritten")]


def test_the_graph_of_the_first_loss_is_looked_at_too(watching: Any) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - torch.randn(8)).pow(2).mean().backward()
        optimizer.step()
    assert causes(watch) == [(0, "broadcasting_loss_shape")]


@pytest.mark.parametrize("cleared", ["first", "last", "both"])
def test_each_of_two_optimizers_of_a_model_has_a_record(watching: Any, cleared: str) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizers = {"first": torch.optim.Adam(model[0].parameters()), "last": torch.optim.Adam(model[2].parameters())}
    for _ in range(6):
        for name, optimizer in optimizers.items():
            if cleared in (name, "both"):
                optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for optimizer in optimizers.values():
            optimizer.step()
    assert {cause for _, cause in causes(watch)} == (set() if cleared == "both" else {"missing_zero_grad"})


@pytest.mark.parametrize("deep", [True, False])
def test_a_shallow_copy_that_is_the_reference_is_named(watching: Any, deep: bool) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    reference = (copy.deepcopy if deep else copy.copy)(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(4):
        x = torch.randn(8, 4)
        with torch.no_grad():
            wanted = reference(x)
        optimizer.zero_grad()
        ((model(x) - wanted).pow(2).mean() + model(x).pow(2).mean()).backward()
        optimizer.step()
    assert {cause for _, cause in causes(watch)} == (set() if deep else {"reference_aliased"})


@pytest.mark.parametrize("made_with", [0.0, 1e-2])
def test_a_rate_that_the_loop_sets_to_zero_is_known_from_the_one_that_was_given(
    watching: Any, made_with: float
) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    first = {"params": model[0].parameters(), "lr": made_with}
    optimizer = torch.optim.SGD([{"params": model[2].parameters()}, first], lr=1e-2)
    for _ in range(4):
        optimizer.param_groups[1]["lr"] = 0.0
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    assert {cause for _, cause in causes(watch)} == ({"wrong_param_group_lr"} if made_with else set())


@pytest.mark.parametrize("unscaled", [True, False])
def test_clipping_of_gradients_that_carry_the_loss_scale_is_named(watching: Any, unscaled: bool) -> None:
    watch = watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu")
    for _ in range(10):
        optimizer.zero_grad()
        scaler.scale((model(torch.randn(8, 4)) - 9).pow(2).mean()).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert {cause for _, cause in causes(watch)} == (set() if unscaled else {"clip_throttles"})
