"""A refusal needs no memory that the plain loop does not need: what is held is let go before a step is run again."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from specimens import batches, differing, loss_fn, make_guard, run_plain, setup, state_of
from torch import Tensor, nn

from steadygrad.engine.state.batch_buffer import BatchBuffer, FetchedBatches
from steadygrad.engine.step.window import with_room
from steadygrad.records.rerun_flag import rerunning


def nan_batch() -> Tensor:
    bad = batches(1)[0].clone()
    bad[1, 2] = math.nan
    return bad


@pytest.mark.parametrize(("mode", "accumulate"), [("now", 2), ("late", 1), ("late", 2)])
def test_a_run_of_ours_that_is_out_of_memory_is_tried_once_more(mode: str, accumulate: int) -> None:
    failed: list[int] = []

    def short_of_memory(model: nn.Module, batch: Tensor) -> Tensor:
        loss = loss_fn(model, batch)
        if rerunning() and len(failed) < 1:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss

    it, good = setup(), batches(8)
    with make_guard(it.model, it.optimizer, short_of_memory, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                    settle=mode, accumulate=accumulate) as guard:  # fmt: skip
        for batch in [*good[:4], nan_batch(), *good[4:]]:
            guard.step(batch)
        assert guard.summary()["guard_faults"] == {}
    here = state_of(it)
    assert failed == [1]
    assert differing(state_of(run_plain(good, accumulate=accumulate)), here) == []


def test_what_is_short_of_memory_twice_reaches_the_program() -> None:
    undone: list[int] = []

    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        with_room(work, lambda: undone.append(1))
    assert undone == [1]

    def broken() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError):
        with_room(broken, lambda: undone.append(1))
    assert undone == [1]


@pytest.mark.parametrize("mode", ["now", "late"])
def test_no_gradient_of_a_refused_step_is_alive_while_batches_are_run_again(mode: str) -> None:
    gradients: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def watching(model: nn.Module, batch: Tensor) -> Tensor:
        if rerunning():
            alive.append(sum(each() is not None for each in gradients))
        else:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda p: gradients.append(weakref.ref(p.grad)))
        return loss_fn(model, batch)

    it, good = setup(), batches(8)
    with make_guard(it.model, it.optimizer, watching, settle=mode, accumulate=2) as guard:
        for batch in [*good[:4], nan_batch(), *good[4:]]:
            guard.step(batch)
    assert alive
    assert alive[0] == 0


def test_kept_batches_come_back_one_at_a_time() -> None:
    buffer = BatchBuffer()
    for step in range(3):
        buffer.put(step, (torch.full((2,), float(step)),), str(step))
    fetched = FetchedBatches(buffer.newest(3))
    assert len(fetched) == 3
    assert [float(batch[0][0]) for batch in fetched] == [0.0, 1.0, 2.0]
    assert [float(batch[0][0]) for batch in fetched[1:]] == [1.0, 2.0]


def test_a_live_batch_with_the_content_of_its_copy_is_used_itself() -> None:
    buffer, live = BatchBuffer(), (torch.tensor([1.0, math.nan]),)
    buffer.put(0, (live[0].clone(),), "a")
    assert buffer.copy_of("a", live) is live
    live[0].add_(1)
    other = buffer.copy_of("a", live)
    assert float(other[0][0]) == 1.0
