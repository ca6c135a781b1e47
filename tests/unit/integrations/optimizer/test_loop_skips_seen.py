"""`sg.attach(optimizer, model=model)` reports a batch that the loop leaves out itself for a non-finite value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

NAN = float("nan")
Loop = Callable[[nn.Module, torch.optim.Optimizer, list[Tensor]], None]


def batches(*bad: int, steps: int = 12) -> list[Tensor]:
    noise = torch.Generator().manual_seed(1)
    made = [torch.randn(4, 5, generator=noise) for _ in range(steps)]
    for step in bad:
        made[step][1, 4] = NAN  # a label, so that the running statistics stay finite
    return made


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :4]) - batch[:, 4:]).pow(2).mean()


def by_the_loss(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for batch in data:
        loss = loss_of(model, batch)
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_the_norm(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for batch in data:
        loss_of(model, batch).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite():
            optimizer.step()
        optimizer.zero_grad()


def by_the_norm_cleared_first(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for batch in data:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if math.isfinite(float(norm)):
            optimizer.step()


def by_the_loss_cleared_by_the_model(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for batch in data:
        loss = loss_of(model, batch)
        loss.backward()
        if torch.isnan(loss):
            model.zero_grad()
            continue
        optimizer.step()
        model.zero_grad()


class OwnTrainer:
    """Keeps its loss in an attribute."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, torch.zeros(())

    def step(self, batch: Tensor) -> None:
        self.loss = loss_of(self.model, batch)
        if self.loss != self.loss:
            return
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def in_a_trainer(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    trainer = OwnTrainer(model, optimizer)
    for batch in data:
        trainer.step(batch)


LOOPS = [by_the_loss, by_the_norm, by_the_norm_cleared_first, by_the_loss_cleared_by_the_model, in_a_trainer]


def own_skips(guard: Any) -> list[Any]:
    return [each for each in guard.incidents if "skipped by the program" in str(each)]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_batch_that_the_loop_leaves_out_is_an_incident_and_the_run_keeps_its_bits(loop: Loop) -> None:
    model, optimizer = parts()
    loop(model, optimizer, batches(5, 8))
    other, attached = parts()
    with sg.attach(attached, model=other) as guard:
        loop(other, attached, batches(5, 8))
    assert len(own_skips(guard)) == len(guard.incidents) == 2
    assert own_skips(guard)[0].first_step in (5, 6)  # the update before which it was seen
    assert (guard.summary()["applied"], guard.summary()["skipped_by_program"]) == (10, 2)
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)), name


@pytest.mark.parametrize("loop", LOOPS)
def test_a_skip_in_the_last_round_is_reported_at_the_end(loop: Loop) -> None:
    model, optimizer = parts()
    guard = sg.attach(optimizer, model=model)
    loop(model, optimizer, batches(11))
    guard.close()
    # A loop that returned has no variables left: only its gradients can tell.
    if loop in (by_the_norm, by_the_norm_cleared_first):
        assert len(own_skips(guard)) == 1


def siamese(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for one, other in zip(data[::2], data[1::2], strict=True):
        loss = loss_of(model, one)
        loss = loss + loss_of(model, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    for number, batch in enumerate(data):
        loss = loss_of(model, batch)
        loss.backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def leaving_out_for_another_reason(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Tensor]) -> None:
    loss = torch.tensor(NAN)
    for number, batch in enumerate(data):
        loss = loss_of(model, batch)
        if number % 4 == 1:
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("loop", [siamese, accumulating, leaving_out_for_another_reason, by_the_loss, by_the_norm])
def test_a_healthy_round_without_an_update_is_not_reported(loop: Loop) -> None:
    model, optimizer = parts()
    with sg.attach(optimizer, model=model) as guard:
        loop(model, optimizer, batches())
    assert guard.incidents == []


def test_an_update_that_was_refused_is_not_reported_again_as_skipped() -> None:
    model, optimizer = parts()
    with sg.attach(optimizer, model=model) as guard:
        for number, batch in enumerate(batches(5)):
            loss = loss_of(model, batch)
            if number == 7:
                continue  # for a reason of its own; the loss of step 5 is long gone
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert own_skips(guard) == []
    assert guard.summary()["skipped"] == 1


def test_gradients_that_another_network_left_are_not_reported_as_skipped() -> None:
    generator, optimizer = parts()
    critic = nn.Linear(1, 1)
    other = torch.optim.SGD(critic.parameters(), lr=1e-2)
    with sg.attach([optimizer, other], model=nn.ModuleList([generator, critic])) as guard:
        for number, batch in enumerate(batches(5)):
            critic(generator(batch[:, :4]).detach().nan_to_num()).mean().backward()
            other.step()
            other.zero_grad()
            critic(generator(batch[:, :4])).mean().backward()  # leaves NaN in the critic at step 5
            optimizer.step()  # refused
            optimizer.zero_grad()
            other.zero_grad()
            assert number < 12
    assert own_skips(guard) == []


def test_a_graph_is_not_kept_for_the_sake_of_a_skipped_batch() -> None:
    import gc
    import weakref

    model, optimizer = parts()
    kept: list[weakref.ref[Tensor]] = []

    def rounds() -> Iterator[None]:
        for batch in batches():
            out = model(batch[:, :4])
            kept.append(weakref.ref(out))
            (out - batch[:, 4:]).pow(2).mean().backward()
            del out
            yield

    with sg.attach(optimizer, model=model):
        for _ in rounds():
            optimizer.step()
            optimizer.zero_grad()
            gc.collect()
            assert kept[-1]() is None
