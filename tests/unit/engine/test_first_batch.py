"""The model's call on an early batch is made again a few times, and the run does not notice."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.early_checks.first_batch import FirstBatch
from steadygrad.engine.early_checks.held_state import HeldState
from steadygrad.engine.early_checks.repeatable_call import why_not_repeat

KEPT: list[int] = []


def reason(model: nn.Module) -> str | None:
    return why_not_repeat(model, HeldState(model))


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
    assert reason(model) is not None
    assert reason(nn.Sequential(nn.Linear(2, 2), model)) is not None


def test_an_ordinary_model_may_be_called_again() -> None:
    assert reason(Language(leaks=False)) is None


@pytest.mark.parametrize("width", [(), (1,)], ids=["one number a row", "one column"])
def test_nothing_of_later_batches_is_kept_whatever_the_model_returns(width: tuple[int, ...]) -> None:
    class Line(nn.Linear):
        def forward(self, given: Tensor) -> Tensor:
            return super().forward(given).reshape(len(given), *width)

    model = Line(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sg.attach(optimizer, model=model) as guard:
        alive = _train_and_delete(model, optimizer)
        assert alive == [False] * 12
        assert guard._checker._first_batch._call is None


def _train_and_delete(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[bool]:
    """Which batches are still in memory after training, while the function that trained still runs."""
    batches: list[weakref.ref[Tensor]] = []
    for _ in range(12):
        inputs = torch.randn(8, 4)
        batches.append(weakref.ref(inputs))
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    del inputs
    gc.collect()
    return [reference() is not None for reference in batches]


class Meter:
    def __init__(self) -> None:
        self.count, self.seen = 0, []


class Remembers(nn.Module):
    """Keeps a plain tensor that it writes to, and an object that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.meter = nn.Embedding(16, 8), nn.Linear(8, 16), Meter()
        self.level = torch.zeros(8)

    def forward(self, ids: Tensor) -> Tensor:
        values = self.embed(ids)
        self.level.mul_(0.9).add_(values.detach().mean((0, 1)))
        self.meter.count += 1
        self.meter.seen.append(len(ids))
        return self.head(values + self.level)


def test_plain_tensors_and_objects_of_a_model_are_as_without_a_look() -> None:
    def run(guarded: bool) -> Remembers:
        torch.manual_seed(0)
        model = Remembers()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        guard = sg.attach(optimizer, model=model) if guarded else None
        for _ in range(5):
            ids = torch.randint(0, 16, (6, 10))
            optimizer.zero_grad()
            F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
        if guard is not None:
            guard.close()
            assert guard.summary()["guard_faults"] == {}
        return model

    plain, looked_at = run(False), run(True)
    assert torch.equal(plain.level, looked_at.level)
    assert (plain.meter.count, plain.meter.seen) == (looked_at.meter.count, looked_at.meter.seen)
    assert torch.equal(plain.head.weight, looked_at.head.weight)


def announce(given: Tensor) -> Tensor:
    print("called")
    return given


class SpeaksInAFunction(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        return super().forward(announce(given))


class SpeaksInAMethod(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        return self.scale(super().forward(given))

    def scale(self, given: Tensor) -> Tensor:
        KEPT.append(1)
        return given


METER = Meter()


class CountsElsewhere(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        METER.count += 1
        return super().forward(given)


@pytest.mark.parametrize("kind", [SpeaksInAFunction, SpeaksInAMethod, CountsElsewhere])
def test_what_a_forward_reaches_is_looked_at_too(kind: type[nn.Linear]) -> None:
    assert reason(kind(2, 2)) is not None


class Generates(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.generator = torch.Generator()


class Iterates(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.numbers = iter(range(10))


class CountsInItsClass(nn.Linear):
    made = 0

    def forward(self, given: Tensor) -> Tensor:
        CountsInItsClass.made += 1
        return super().forward(given)


class KeepsInItsClass(nn.Linear):
    kept: list[int] = []

    def forward(self, given: Tensor) -> Tensor:
        self.kept.append(1)
        return super().forward(given)


@pytest.mark.parametrize("kind", [Generates, Iterates, CountsInItsClass, KeepsInItsClass])
def test_state_that_cannot_be_restored_is_left_alone(kind: type[nn.Linear]) -> None:
    assert reason(kind(2, 2)) is not None


def test_models_of_libraries_may_be_called_again() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    assert reason(transformers.GPT2LMHeadModel(config)) is None
    assert reason(nn.TransformerEncoderLayer(8, 2, 16)) is None


def causes(model: nn.Module, step: Any, steps: int = 6) -> list[str]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with sg.attach(optimizer, model=model) as guard:
        for _ in range(steps):
            optimizer.zero_grad()
            step().backward()
            optimizer.step()
    assert guard.summary()["guard_faults"] == {}
    return [incident.diagnosis.cause.slug for incident in guard.incidents]


@pytest.mark.parametrize(("empty", "expected"), [(6, ["labels_mostly_masked"]), (1, [])])
def test_labels_that_the_model_is_not_given_are_looked_at(empty: int, expected: list[str]) -> None:
    torch.manual_seed(0)
    model = Language(leaks=False)

    def step() -> Tensor:
        ids = torch.randint(0, 16, (8, 10))
        batch = {"ids": ids, "labels": ids.roll(-1, 1).masked_fill(torch.arange(8)[:, None] < empty, -100)}
        return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())

    assert causes(model, step) == expected


@pytest.mark.parametrize(("masked", "expected"), [(False, ["padding_in_loss"]), (True, [])])
def test_a_mask_that_neither_model_nor_loss_is_given_is_looked_at(masked: bool, expected: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def step() -> Tensor:
        frames, length = torch.randn(8, 20, 4), torch.randint(2, 9, (8,))
        mask = torch.arange(20)[None] < length[:, None]
        frames = torch.where(mask[..., None], frames, frames[torch.arange(8), length - 1][:, None])
        error = (model(frames) - frames[..., :2] * mask[..., None]).pow(2).mean(-1)
        return (error * mask).sum() / mask.sum() if masked else error.mean()

    assert causes(model, step) == expected


def test_a_mask_of_prompts_is_not_taken_for_padding() -> None:
    torch.manual_seed(0)
    model = Language(leaks=False)

    def step() -> Tensor:
        ids = torch.randint(0, 16, (8, 10))
        prompt_mask = torch.arange(10)[None] < torch.randint(2, 5, (8,))[:, None]
        labels = ids.roll(-1, 1).masked_fill(prompt_mask, -100)
        labels[:, -1] = -100
        return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    assert causes(model, step) == []


@pytest.mark.parametrize(("scale", "expected"), [(1e5, ["saturated_activation"]), (1.0, [])])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_gates_that_the_size_of_the_input_holds_are_named(
    kind: type[nn.RNNBase], scale: float, expected: list[str]
) -> None:
    torch.manual_seed(0)

    class Direction(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = kind(1, 16, batch_first=True), nn.Linear(16, 1)

        def forward(self, prices: Tensor) -> Tensor:
            return self.out(self.rnn(prices[..., None])[0][:, -1]).squeeze(-1)

    model = Direction()

    def step() -> Tensor:
        prices = scale * (1 + 0.1 * torch.randn(16, 6))
        return F.binary_cross_entropy_with_logits(model(prices), (prices[:, -1] > prices.mean(1)).float())

    assert causes(model, step) == expected


def test_a_look_that_breaks_keeps_nothing_of_the_program() -> None:
    broke: list[Exception] = []
    model = nn.Linear(4, 2)
    first = FirstBatch(model, broke.append)
    first.before_forward(1)
    model(torch.randn(3, 4))
    first._failed(ValueError("planted"))
    assert first.done
    assert broke
    assert not model._forward_hooks
    assert first._call is None
    assert not first._beside
    assert model(torch.randn(3, 4)).shape == (3, 2)


def test_a_batch_made_under_inference_mode_is_not_kept() -> None:
    model = nn.Linear(4, 2)
    first = FirstBatch(model, lambda fault: pytest.fail(str(fault)))
    first.before_forward(1)
    with torch.inference_mode():
        batch = torch.randn(3, 4)
    with torch.enable_grad():
        hook = next(iter(model._forward_hooks.values()))
        hook(model, (batch,), {}, torch.randn(3, 2))
    assert first.done
    assert not model._forward_hooks
    assert first._call is None
