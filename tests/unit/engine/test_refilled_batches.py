"""One buffer that the program fills anew for every micro-batch: what is run again is what was fed, or it is not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from specimens import batches, differing, make_guard, run_plain, same_bits, setup, state_of
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.detect.tensors.kept_content import KeptContent, RefilledMemory, marks_of
from steadygrad.engine.state.batch_buffer import BatchBuffer
from steadygrad.journal import read_events

MODES = ["now", "late"]
Feed = Callable[[Tensor], Any]


def one_tensor() -> Feed:
    buffer = torch.empty(6, 9)
    return lambda batch: buffer.copy_(batch)


def two_tensors_in_turn() -> Feed:
    buffers, turn = [torch.empty(6, 9), torch.empty(6, 9)], iter(range(1000))
    return lambda batch: buffers[next(turn) % 2].copy_(batch)


def an_array() -> Feed:
    array = np.empty((6, 9), dtype=np.float32)

    def fill(batch: Tensor) -> Tensor:
        array[:] = batch.numpy()
        return torch.from_numpy(array)

    return fill


def through_data() -> Feed:
    buffer = torch.empty(6, 9)

    def fill(batch: Tensor) -> Tensor:
        buffer.data.copy_(batch)
        return buffer

    return fill


WAYS = [one_tensor, two_tensors_in_turn, an_array, through_data]


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


def run(way: Callable[[], Feed], data: Sequence[Tensor], **options: Any) -> tuple[Any, sg.Guard]:
    it, feed = setup(), way()
    with make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                    **options) as guard:  # fmt: skip
        for batch in data:
            guard.step(feed(batch))
        assert not guard.summary()["guard_faults"]
    return it, guard


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [5, 6, 7])
def test_good_micro_batches_of_a_refused_window_are_run_again_with_their_own_content(
    way: Callable[[], Feed], mode: str, place: int
) -> None:
    good = batches(12)
    it, guard = run(way, [*good[:place], nan_batch(), *good[place:]], accumulate=3, settle=mode)
    here = state_of(it)
    assert guard.summary()["skipped"] == 1
    assert differing(state_of(run_plain(good, accumulate=3)), here) == []


@pytest.mark.parametrize("way", [one_tensor, an_array])
@pytest.mark.parametrize("mode", MODES)
def test_a_window_whose_content_is_lost_is_left_out_as_a_whole(
    way: Callable[[], Feed], mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the very first micro-batch there is no copy: no one knew that its memory would be filled anew."""
    good = batches(6)
    data = [batches(1, seed=5)[0], nan_batch(), *good]
    it, _ = run(way, data, accumulate=2, settle=mode, run_dir=tmp_path, diagnose="auto")
    here = state_of(it)
    assert "was written to after it was fed" in caplog.text
    assert [event.data["batch_keys"] for event in read_events(tmp_path) if event.kind == "batch_overwritten"] == [["0"]]
    assert differing(state_of(run_plain(good, accumulate=2)), here) == []


@pytest.mark.parametrize("mode", MODES)
def test_an_unfinished_window_that_is_looked_at_shows_no_trace_of_another_content(mode: str) -> None:
    good, feed = batches(7), one_tensor()
    it = setup()
    with make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                    settle=mode, accumulate=3) as guard:  # fmt: skip
        for batch in [*good[:4], nan_batch()]:
            guard.step(feed(batch))
        guard.settle()
        for batch in good[4:6]:
            guard.step(feed(batch))
        here = state_of(it)
    assert differing(state_of(run_plain(good[:6], accumulate=3)), here) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_diagnosis_of_a_late_step_does_not_use_the_batch_behind_it(mode: str) -> None:
    good = batches(5)
    _, guard = run(one_tensor, [*good, nan_batch(), *good], settle=mode, diagnose="auto")
    [incident] = guard.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.cause.slug == "bad_input"


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_fn_that_writes_into_its_first_batch_has_it_run_again_never(mode: str) -> None:
    """The step before it was refused late, so it would be run again, and it is no longer what it was."""

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x)
            return out

    def writing(model: nn.Module, batch: Tensor) -> Tensor:
        if not bool(batch.isfinite().all()):
            return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()
        batch += 1.0
        return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()

    def plain(data: Sequence[Tensor]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = Adding()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
        for batch in data:
            writing(model, batch.clone()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return dict(model.state_dict())

    torch.manual_seed(0)
    model = Adding()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    good = batches(4)
    with make_guard(model, optimizer, writing, settle=mode) as guard:
        for batch in [nan_batch(), *good]:
            guard.step(batch.clone())
    got = dict(model.state_dict())
    assert any(same_bits(plain(data), got) == [] for data in (good, good[1:]))


def test_batches_of_one_set_that_come_again_are_not_taken_for_refilled() -> None:
    memory, data = RefilledMemory(), batches(3)
    kept = []
    for batch in [*data, *data]:
        assert not memory.look([batch])
        kept.append(memory.keep([batch]))
    assert not any(content.written for content in kept)
    data[1].add_(1.0)
    assert memory.look([data[1]])


def test_memory_that_is_no_longer_kept_says_nothing() -> None:
    memory, buffer = RefilledMemory(), torch.zeros(4)
    memory.keep([buffer])
    buffer += 1
    assert not memory.look([buffer])


def test_what_numpy_writes_is_seen_and_a_nan_is_not_taken_for_a_write() -> None:
    array = np.full((4, 4), np.nan, dtype=np.float32)
    tensor = torch.from_numpy(array)
    before, content = marks_of({"x": tensor}), KeptContent([torch.zeros(2), tensor.T[1:], torch.tensor(1.0)])
    assert marks_of({"x": tensor}) == before
    assert not content.written
    array[:] = 1.0
    assert marks_of({"x": tensor}) != before
    assert content.written


@torch.inference_mode()
def test_tensors_that_count_no_versions_can_be_kept() -> None:
    inference = torch.zeros(3)
    content = KeptContent([inference])
    assert not content.written
    inference += 1
    assert content.written


def test_a_rollback_knows_which_kept_batches_were_refilled() -> None:
    buffer, memory = BatchBuffer(), torch.zeros(3)
    buffer.put(0, (memory,), "a")
    buffer.put(1, (torch.ones(3),), "b")
    assert buffer.since(0) is not None
    memory += 1
    assert buffer.since(0) is None
    assert buffer.since(1) is not None
