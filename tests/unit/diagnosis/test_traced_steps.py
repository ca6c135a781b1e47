"""Steps that are traced while they run cost at most about three times a plain one, say so, and change nothing."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

tracing: Any = importlib.import_module("steadygrad.integrations.zero_code.rerun.step_tracing")


class Loop:
    """As much of an optimizer's loop as a traced window asks for."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self._named = dict(model.named_parameters())

    def named_parameters(self) -> dict[str, Tensor]:
        return self._named


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def window(model: nn.Module, loop: Loop, batch: Tensor, loss_fn: Any) -> Any:
    """One traced step up to its update."""
    traced = tracing.StepTracing(SimpleNamespace(module=model, batch={"x": batch}), loop)
    loss = loss_fn(model(batch))
    traced.backward_begins(loss)
    loss.backward()
    traced.close()
    return traced


def logarithm(out: Tensor) -> Tensor:
    return (out * 0).log().mean()


@pytest.fixture(autouse=True)
def no_mode_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And time enough, so that a busy machine ends no window; the tests about time set their own."""
    monkeypatch.setattr(tracing, "PATIENCE", 60.0)
    yield
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_traced_step_shows_where_its_bad_value_comes_from() -> None:
    model = net()
    found = window(model, Loop(model), torch.randn(6, 4), logarithm).diagnosis("inf_loss", 3)
    assert found.origin.op == "log"
    assert found.cause.slug == "log_zero"
    assert found.origin.inputs[0].num_zero == 6


def test_what_the_model_computes_is_not_copied_and_what_the_loss_reads_is() -> None:
    model = net()
    traced = window(model, Loop(model), torch.randn(6, 4), lambda out: out.pow(2).log().mean())
    kept = traced._tracer.specimens
    records = traced._tracer.trace.records
    assert {records[ordinal].op for ordinal in kept} >= {"pow", "log", "mean"}
    assert all(records[ordinal].module is None for ordinal in kept)
    of_model = [r.ordinal for r in records if r.backward and r.op in ("mm", "tanh_backward")]
    assert of_model
    assert not set(of_model) & set(kept)


def test_the_copies_of_a_window_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_MAX_KEPT", 100)
    model = net()

    def long(out: Tensor) -> Tensor:
        for _ in range(50):
            out = out * 1.01
        return out.pow(2).mean()

    traced = window(model, Loop(model), torch.randn(6, 4), long)
    held = [t for s in traced._tracer.specimens.values() for t in (*s.tensors, *s.output_tensors)]
    assert 0 < sum(tensor.numel() for tensor in held) <= 100


def test_a_window_that_costs_too_much_is_not_traced_to_its_end_and_is_not_diagnosed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "PATIENCE", 0.0)
    monkeypatch.setattr(tracing, "SHARE", 0.0)
    model = net()
    traced = window(model, Loop(model), torch.randn(6, 4), logarithm)
    assert "twice as long" in traced.stopped
    assert len(traced._tracer.trace.records) < 3
    assert traced.diagnosis("inf_loss", 3) is None
    assert all(p.grad is not None for p in model.parameters())


def test_after_a_costly_window_the_next_ones_are_left_alone_until_it_is_paid_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(tracing, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    model = net()
    loop = Loop(model)
    assert tracing.StepTracing.possible(loop)
    account = tracing._accounts.setdefault(loop, tracing._Account())
    with caplog.at_level(logging.WARNING, logger="steadygrad"):
        account.pay(own=0.5, rest=0.1)
        assert tracing.StepTracing.possible(loop)
        assert caplog.records == []
        account.pay(own=6.0, rest=1.0)
        account.pay(own=6.0, rest=1.0)
    assert len(caplog.records) == 1
    assert "6.0 s of them for tracing" in caplog.text
    assert not tracing.StepTracing.possible(loop)
    now[0] += 1.9
    assert not tracing.StepTracing.possible(loop)
    now[0] += 0.2
    assert tracing.StepTracing.possible(loop)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), ValueError("a bug of ours")])
def test_nothing_that_fails_in_the_tracer_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    trace = importlib.import_module("steadygrad.diagnosis.trace.tracer")

    def broken(tensor: Tensor) -> Tensor:
        raise error

    monkeypatch.setattr(trace, "_absmax", broken)
    model = net()
    traced = window(model, Loop(model), torch.randn(6, 4), logarithm)
    assert all(p.grad is not None for p in model.parameters())
    assert traced.diagnosis("inf_loss", 3) is None
    assert (traced.stopped == "out of memory") == isinstance(error, torch.OutOfMemoryError)


def test_a_sparse_gradient_is_no_trouble() -> None:
    model = nn.Embedding(9, 4, sparse=True)
    traced = tracing.StepTracing(SimpleNamespace(module=model, batch={"x": torch.arange(3)}), Loop(model))
    loss = (model(torch.arange(3)) / 0).sqrt().sum()
    traced.backward_begins(loss)
    loss.backward()
    traced.close()
    found = traced.diagnosis("nan_loss", 1)
    assert found is not None
    assert found.origin.op in ("div", "sqrt")


def test_a_step_of_some_size_takes_at_most_three_times_as_long() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), *[nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True) for _ in range(2)]
    )
    loop, batch = Loop(model), torch.randn(16, 64, 64)

    def plain() -> float:
        began = time.process_time()
        model(batch).pow(2).mean().backward()
        return time.process_time() - began

    def traced() -> float:
        began = time.process_time()
        window(model, loop, batch, lambda out: out.pow(2).mean())
        return time.process_time() - began

    plain(), traced()
    assert min(traced() for _ in range(5)) < 3 * min(plain() for _ in range(5))
