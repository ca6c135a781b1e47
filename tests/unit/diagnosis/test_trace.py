"""The tracer sees every op, where it stands, what it read and wrote, and leaves no trace of its own."""

from __future__ import annotations

import gc
import linecache
import math
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from steadygrad.diagnosis.trace.tracer import Tracer


class LogNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"fc": nn.Linear(4, 4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner["fc"](x)
        return torch.log(hidden.abs() + 1.0)


def traced(model: nn.Module, loss_fn: object, x: torch.Tensor) -> Tracer:
    tracer = Tracer(model)
    with tracer.tracing():
        loss = loss_fn(model, x)  # type: ignore[operator]
        tracer.stage = "backward"
        loss.backward()
    tracer.trace.finish()
    return tracer


def squared(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).pow(2).mean()


def test_an_op_inside_a_module_carries_its_qualified_name_and_the_users_line() -> None:
    trace = traced(LogNet(), squared, torch.randn(3, 4)).trace
    addmm = next(r for r in trace.records if r.op == "addmm")
    log = next(r for r in trace.records if r.op == "log")
    assert addmm.module == "inner.fc"
    assert log.module == ""
    assert log.stack.innermost is not None
    assert log.stack.innermost.text == "return torch.log(hidden.abs() + 1.0)"


def test_an_op_outside_every_module_has_no_module() -> None:
    trace = traced(LogNet(), squared, torch.randn(3, 4)).trace
    assert next(r for r in trace.records if r.op == "pow").module is None


def test_a_backward_op_points_at_the_forward_op_it_differentiates() -> None:
    trace = traced(LogNet(), squared, torch.randn(3, 4)).trace
    differentiated = {trace.records[r.forward_ordinal].op for r in trace.records if r.backward and r.forward_ordinal}
    assert {"log", "addmm", "pow", "mean"} <= differentiated


def test_inputs_are_read_before_an_in_place_op_changes_them() -> None:
    model = nn.Identity()
    tracer = Tracer(model)
    with tracer.tracing():
        value = torch.full((3,), 2.0)
        value.mul_(float("inf"))
    tracer.trace.finish()
    record = next(r for r in tracer.trace.records if r.op == "mul")
    assert tracer.trace.value(record.reads[0]) == 2.0
    assert math.isinf(tracer.trace.value(record.writes[0]))


def test_in_place_and_private_names_are_told_without_underscores() -> None:
    tracer = Tracer(nn.Identity())
    with tracer.tracing():
        torch.softmax(torch.zeros(2, 2), -1).lerp_(torch.ones(2, 2), 0.5)
    assert [r.op for r in tracer.trace.records][-1] == "lerp"
    assert "softmax" in {r.op for r in tracer.trace.records}


def test_recomputed_ops_of_a_checkpoint_count_as_forward_and_keep_their_module() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = LogNet()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, x, use_reentrant=False)

    trace = traced(Checkpointed(), squared, torch.randn(3, 4)).trace
    again = [r for r in trace.records if r.op == "addmm" and r.stage == "backward"]
    assert again
    assert all(r.module == "block.inner.fc" and not r.backward for r in again)


def test_tracing_keeps_no_tensor_alive() -> None:
    class Remember(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            middle = x * 2
            kept.append(weakref.ref(middle))
            return middle + 1

    kept: list[weakref.ref[torch.Tensor]] = []
    tracer = Tracer(Remember())
    with tracer.tracing(), torch.no_grad():
        Remember()(torch.ones(4))
    gc.collect()
    assert kept
    assert all(reference() is None for reference in kept)
    assert tracer.trace.records


def test_tracing_changes_no_bit_of_the_result() -> None:
    torch.manual_seed(3)
    model, x, y = LogNet(), torch.randn(5, 4), torch.randn(5, 4)
    plain = F.mse_loss(model(x), y)
    plain.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    with Tracer(model).tracing():
        watched = F.mse_loss(model(x), y)
        watched.backward()
    assert torch.equal(plain, watched)
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, model.parameters(), strict=True) if p.grad is not None)


def test_the_module_call_is_restored_after_tracing() -> None:
    before = nn.Module.__call__
    with Tracer(LogNet()).tracing():
        assert nn.Module.__call__ is not before
    assert nn.Module.__call__ is before


def test_source_that_a_program_ran_itself_and_gave_to_linecache_is_the_users() -> None:
    source, name = "def loss_fn(model, x):\n    return model(x).log().sum()\n", "<cell-7>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, object] = {}
    exec(compile(source, name, "exec"), names)
    record = next(r for r in traced(LogNet(), names["loss_fn"], torch.ones(2, 4)).trace.records if r.module is None)
    assert record.stack.innermost is not None
    assert (record.stack.innermost.source, record.stack.innermost.text) == (f"{name}:2", "return model(x).log().sum()")
