"""What a loop skips or scrubs itself is seen when the loop goes on, and a healthy loop shows nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, dataloader

from steadygrad.integrations.loops.patching import Patches
from steadygrad.integrations.zero_code.hooks.call_log import Call, note_call
from steadygrad.integrations.zero_code.hooks.loader_batches import LoaderBatches
from steadygrad.integrations.zero_code.hooks.loop_events import LoopEvents, Skipped
from steadygrad.integrations.zero_code.rerun.loop_lines import LoopLines


class Listener:
    """The wiring of a watch, without its engine."""

    def __init__(self) -> None:
        self.seen: list[Skipped] = []
        self.loop_passes: list[int] = []
        self.slices, self.batches = LoopLines(), LoaderBatches()
        self.calls: list[Call] = []
        self.events = LoopEvents(self.slices, self.batches, lambda: self.calls, self.on_skipped)

    def on_skipped(self, event: Skipped) -> None:
        self.seen.append(event)
        self.loop_passes.append(len(self.slices.loop_passes))

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if self.events.called():
            self.calls.clear()
        call = note_call(module, args, kwargs, depth=1)
        self.calls.append(call)
        self.slices.called(call)


@pytest.fixture
def listener() -> Iterator[Listener]:
    heard, patches = Listener(), Patches()
    kind: Any = dataloader._BaseDataLoaderIter

    def backward(original: Any, loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        heard.events.backward_begins(loss)
        heard.slices.backward_begins(loss)
        return original(loss, *args, **kwargs)

    def clip(original: Any, *args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        heard.events.clipped(norm)
        return norm

    def zeroed(original: Any, *args: Any, **kwargs: Any) -> Any:
        heard.events.zeroed()
        return original(*args, **kwargs)

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        heard.batches.restarted(self)
        original(self, *args, **kwargs)

    def following(original: Any, self: Any) -> Any:
        batch = original(self)
        heard.batches.hand_out(self, batch)
        return batch

    def index(original: Any, self: Any) -> Any:
        drawn = original(self)
        heard.batches.drawn(self, drawn)
        return drawn

    patches.around(Tensor, "backward", backward)
    patches.around(nn.utils, "clip_grad_norm_", clip)
    patches.around(torch.optim.Optimizer, "zero_grad", zeroed)
    patches.around(kind, "__init__", made)
    patches.around(kind, "__next__", following)
    patches.around(kind, "_next_index", index)
    heard.events.listen(patches)
    yield heard
    patches.undo()


def parts(listener: Listener) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    model.register_forward_pre_hook(lambda *args: listener.called(*args), with_kwargs=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def stepped(*_: Any) -> None:
        listener.events.stepped()
        listener.calls.clear()
        listener.slices.forget()

    optimizer.register_step_post_hook(stepped)
    return model, optimizer


def loader(bad: tuple[int, ...] = ()) -> DataLoader[Any]:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    x[list(bad)] = math.nan
    return DataLoader(TensorDataset(x, y), batch_size=4)


def test_a_loss_that_is_checked_and_skipped_is_seen_with_its_batch(listener: Listener) -> None:
    model, optimizer = parts(listener)
    for x, y in loader(bad=(17, 30)):
        loss = (model(x) - y).pow(2).mean()
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    listener.events.finished()
    assert [event.kind for event in listener.seen] == ["loss", "loss"]
    assert all(math.isnan(event.loss or 0.0) for event in listener.seen)
    assert [event.batch_key for event in listener.seen] == ["samples 16, 17, 18, 19", "samples 28, 29, 30, 31"]
    assert all(event.can_rerun for event in listener.seen)
    assert listener.loop_passes == [1, 1]


def test_the_last_batch_of_the_program_is_seen_too(listener: Listener) -> None:
    model, optimizer = parts(listener)
    for x, y in loader(bad=(39,)):
        loss = (model(x) - y).pow(2).mean()
        if not math.isfinite(loss.item()):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert listener.seen == []
    listener.events.finished()
    assert [event.batch_key for event in listener.seen] == ["samples 36, 37, 38, 39"]


def test_a_function_that_returns_early_is_seen_in_a_loop_without_a_loader(listener: Listener) -> None:
    model, optimizer = parts(listener)

    def step(x: Tensor) -> None:
        loss = model(x).pow(2).mean()
        if not torch.isfinite(loss):
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for number in range(6):
        step(torch.full((2, 4), math.inf if number == 3 else 1.0))
        optimizer.zero_grad()
    listener.events.finished()
    assert [event.kind for event in listener.seen] == ["loss"]


def test_an_update_dropped_for_its_norm_is_seen(listener: Listener) -> None:
    model, optimizer = parts(listener)
    for number, (x, y) in enumerate(loader()):
        out = model(x)
        loss = (out - y).pow(2).mean()
        if number == 4:
            loss = loss + (0.0 * out.sum()).abs().sqrt()  # zero, and its slope is infinite
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            optimizer.zero_grad(set_to_none=True)
            continue
        optimizer.step()
    listener.events.finished()
    assert [event.kind for event in listener.seen] == ["norm"]
    assert not math.isfinite(listener.seen[0].grad_norm or 0.0)
    assert math.isfinite(listener.seen[0].loss or math.nan)
    assert listener.seen[0].can_rerun


def test_scrubbed_gradients_are_seen_at_the_update(listener: Listener) -> None:
    model, optimizer = parts(listener)
    for x, y in loader(bad=(9,)):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.nan_to_num_(0.0)
        optimizer.step()
    assert [event.kind for event in listener.seen] == ["scrubbed"]
    assert listener.seen[0].batch_key == "samples 8, 9, 10, 11"


@pytest.mark.parametrize("kind", ["plain", "accumulation", "evaluation", "unrolled", "scrubbed for safety"])
def test_a_healthy_loop_shows_nothing(kind: str, listener: Listener) -> None:
    model, optimizer = parts(listener)
    for number, (x, y) in enumerate(loader()):
        if kind == "evaluation":
            model(x).pow(2).mean()  # computed and not used
        out = model(x)
        if kind == "unrolled":
            for _ in range(3):
                out = out + model(x)
        loss = (out - y).pow(2).mean()
        loss.backward()
        if kind == "scrubbed for safety":
            for parameter in model.parameters():
                assert parameter.grad is not None
                torch.nan_to_num(parameter.grad, out=parameter.grad)
        if kind != "accumulation" or number % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    listener.events.finished()
    assert listener.seen == []
