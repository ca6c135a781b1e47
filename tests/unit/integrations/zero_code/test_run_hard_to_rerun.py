"""Refused steps whose lines cannot simply be run again from the model's call: what is found of them all the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def only_diagnosis(watch: Any) -> Any:
    assert watch.barrier.faults == {}
    (incident,) = [incident for log in watch.ledger.log for incident in log.incidents]
    return incident.diagnosis


# -- a world that the program moves while it calls the model


class Walk:
    """Each walk is as long as the next of its lengths says, and none can be walked twice."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.places = list(reversed(lengths)), [0.0]

    def begin(self) -> bool:
        self.places = [float(place) for place in range(self.lengths.pop())]
        return False

    def step(self, action: Tensor) -> tuple[float, bool]:
        place = self.places.pop()
        return place * (1.0 + float(action > 0)), not self.places


def play(lengths: list[int]) -> nn.Module:
    torch.manual_seed(0)
    policy = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    world = Walk(lengths)
    for _ in lengths:
        done, scores, gains = world.begin(), [], []
        while not done:
            score = policy(torch.rand(2))
            scores.append(score)
            reward, done = world.step(score)
            gains.append(reward)
        gain = torch.tensor(gains)
        advantage = (gain - gain.mean()) / gain.std()
        loss = -(torch.cat(scores) * advantage).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


@pytest.mark.filterwarnings("ignore:std")
def test_the_lines_behind_a_world_that_moved_are_run_again_from_what_they_read(watching: Any) -> None:
    plain = play([3, 4, 5, 3])
    watch = watching(diagnose="auto")
    model = play([3, 4, 1, 5, 3])
    found = only_diagnosis(watch)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert plain.weight.shape == model.weight.shape
    assert (found.origin.op, found.cause.slug) == ("std", "empty_reduction")
    assert found.origin.code_line == "advantage = (gain - gain.mean()) / gain.std()"
    assert not found.remedies
    assert any("no remedy was tried" in note for note in found.notes)


@pytest.mark.filterwarnings("ignore:std")
def test_running_those_lines_again_moves_nothing(watching: Any) -> None:
    watch = watching(diagnose="off")
    plain = play([3, 4, 1, 5, 3])
    watch.stop()
    watching(diagnose="auto")
    model = play([3, 4, 1, 5, 3])
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def cooled(data: list[Tensor]) -> None:
    torch.manual_seed(0)
    model, seen, heat = nn.Linear(3, 1), iter(data), 4.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(len(data)):
        score = model(next(seen)).square().mean()
        heat = heat - 1.0
        loss = score / torch.tensor(heat)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_lines_are_run_from_behind_one_that_assigns_what_it_reads(watching: Any) -> None:
    watch = watching(diagnose="auto")
    cooled([torch.rand(2, 3) + 0.5 for _ in range(6)])
    found = only_diagnosis(watch)
    assert (found.origin.op, found.cause.slug) == ("div", "zero_division")
    assert found.origin.code_line == "loss = score / torch.tensor(heat)"


# -- a half-precision copy that is trained by its master


def half_with_master(data: list[tuple[Tensor, Tensor]], scale: float) -> nn.Module:
    torch.manual_seed(0)
    master = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    copy = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
    copy.load_state_dict(master.state_dict())
    optimizer = torch.optim.SGD(master.parameters(), lr=0.01)
    for x, y in data:
        loss = (copy(x.half()).squeeze(1).float() - y).square().mean()
        copy.zero_grad()
        (loss * scale).backward()
        for full, low in zip(master.parameters(), copy.parameters(), strict=True):
            full.grad = low.grad.float() / scale
        optimizer.step()
        with torch.no_grad():
            for full, low in zip(master.parameters(), copy.parameters(), strict=True):
                low.copy_(full)
    return master


def test_an_overflow_in_the_backward_of_a_copy_is_named(watching: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    data = [(torch.rand(4, 4, generator=generator), torch.rand(4, generator=generator)) for _ in range(8)]
    data[5][1][2] = 500.0
    watch = watching(diagnose="auto")
    master = half_with_master(data, 1024.0)
    found = only_diagnosis(watch)
    assert all(bool(torch.isfinite(p).all()) for p in master.parameters())
    assert (found.origin.phase, found.cause.slug) == ("backward", "fp16_overflow")
    assert ".float() - y" in found.origin.code_line
    assert found.rows == (2,)
    scaled = next(trial for trial in found.trials if trial.remedy.slug == "scale_down")
    assert (scaled.finite, scaled.verified) == (True, False)  # the copy does not feel the update of its master


# -- a buffer that an update long after the last copy has spoiled


class Centred(nn.Module):
    """Moves its centre towards the mean of the rows that are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: Tensor, marked: Tensor) -> Tensor:
        out = self.body(x - self.centre)
        with torch.no_grad():
            mean = (x * marked[:, None]).sum(0) / marked.sum()
            self.centre.lerp_(mean, 0.1)
        return out


def follow(count: int, without: int) -> nn.Module:
    torch.manual_seed(0)
    model = Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(count):
        x, marked = torch.rand(4, 3), torch.ones(4)
        if step == without:
            marked = torch.zeros(4)
        loss = model(x, marked).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_the_line_that_spoiled_a_buffer_is_found_many_updates_after_the_last_copy(watching: Any) -> None:
    watch = watching(diagnose="auto")
    model = follow(24, 16)
    found = only_diagnosis(watch)
    assert all(bool(torch.isfinite(t).all()) for t in (*model.parameters(), *model.buffers()))
    assert (found.origin.op, found.cause.slug) == ("div", "zero_division")
    assert found.origin.code_line == "mean = (x * marked[:, None]).sum(0) / marked.sum()"
    assert any("the loss of step 16 was finite" in note for note in found.notes)
    assert "eps" in {trial.remedy.slug for trial in found.remedies}


# -- a model that cannot be called twice with a batch


class Tickets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.used = nn.Linear(2, 1), set[int]()

    def forward(self, number: int, x: Tensor) -> Tensor:
        if number in self.used:
            raise RuntimeError(f"ticket {number} was used before")
        self.used.add(number)
        return self.layer(x)


def test_a_call_that_raises_when_it_is_made_again_is_said_and_is_no_internal_error(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    model = Tickets()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(6, 4, 2)
    batches[3, 1] = math.nan
    for number, x in enumerate(batches):
        loss = model(number, x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = only_diagnosis(watch)
    assert any("made again, the model's call raised RuntimeError: ticket 3 was used" in note for note in found.notes)
    assert not any("its output is finite" in note for note in found.notes)
    assert found.cause is None


# -- a part of the batch that the loop computes in place of its name


def parts(rows: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for x in rows:
        yield x, x.sum(1)


def normalised(rows: list[Tensor]) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, gain in parts(rows):
        gain = (gain - gain.mean()) / gain.std()
        loss = (model(x).squeeze(1) * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def moved(rows: list[Tensor]) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, gain in parts(rows):
        gain = gain.double().float()
        loss = (model(x).squeeze(1) * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.filterwarnings("ignore:std")
def test_a_line_that_computes_a_variable_out_of_itself_is_named_although_it_cannot_be_run_again(watching: Any) -> None:
    watch = watching(diagnose="auto")
    model = normalised([*torch.rand(5, 4, 3), torch.rand(1, 3), torch.rand(4, 3)])
    found = only_diagnosis(watch)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert (found.origin.phase, found.origin.tensor) == ("data", "gain")
    assert found.origin.code_line == "gain = (gain - gain.mean()) / gain.std()"
    assert any("the line was not run" in note for note in found.notes)


def test_a_line_that_only_casts_a_bad_value_is_not_named_as_its_origin(watching: Any) -> None:
    rows = list(torch.rand(6, 4, 3))
    rows[4][1, 2] = torch.nan
    watch = watching(diagnose="auto")
    moved(rows)
    found = only_diagnosis(watch)
    assert found.origin.phase == "data"
    assert found.origin.code_line is None


# -- lines that draw from a generator which an object of the program holds


class Negatives:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(8)

    def draw(self) -> Tensor:
        return torch.randint(0, 30, (6,), generator=self.generator)


def with_negatives(count: int, per_update: int) -> tuple[nn.Module, Negatives]:
    torch.manual_seed(0)
    model, negatives = nn.Embedding(30, 3), Negatives()
    shares = torch.full((30,), 1 / 29)
    shares[17] = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(count):
        item = torch.tensor([number % 5])
        scores = model(item) @ model(drawn := negatives.draw()).t()
        loss = (scores - torch.log(shares[drawn])).logsumexp(1).mean()
        loss.backward()
        if (number + 1) % per_update == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model, negatives


@pytest.mark.parametrize("per_update", [1, 2])
def test_lines_are_run_again_with_the_numbers_they_drew_from_the_programs_generator(
    watching: Any, per_update: int
) -> None:
    watch = watching(diagnose="off")
    plain, drawn = with_negatives(12, per_update)
    watch.stop()
    watch = watching(diagnose="auto")
    model, negatives = with_negatives(12, per_update)
    assert watch.barrier.faults == {}
    assert torch.equal(plain.weight, model.weight)
    assert torch.equal(drawn.generator.get_state(), negatives.generator.get_state())
    found = next(incident.diagnosis for log in watch.ledger.log for incident in log.incidents)
    assert found.cause.slug == "log_zero"
    assert found.origin.code_line == "loss = (scores - torch.log(shares[drawn])).logsumexp(1).mean()"
    assert "eps" in {trial.remedy.slug for trial in found.remedies}
