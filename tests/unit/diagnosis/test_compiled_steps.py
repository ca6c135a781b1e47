"""A step that fails only as compiled code: proved by an eager replay, and remedied by leaving compilation out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg

Change = Callable[[Any], Any]


def wrong_backend(target: Any, instead: Change) -> Callable[..., Any]:
    """A compiler that replaces every call of one function by another one."""

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        for node in graph.graph.nodes:
            if node.target is target or node.target == getattr(target, "__name__", None):
                node.op, node.target = "call_function", instead
        graph.recompile()
        return graph.forward

    return backend


def sqrt_of_less(x: Tensor) -> Tensor:
    """What a contracted multiply-add leaves of a variance of zero."""
    return (x - 1e-3).sqrt()


class Pool(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        mean = h.mean(1)
        var = (h * h).mean(1) - mean * mean
        return torch.cat([mean, torch.sqrt(var.clamp_min(0) + 1e-5)], -1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pool, self.head = nn.Linear(4, 4), Pool(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(torch.cat([x[:, :, :2], x[:, :, 2:]], -1)))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def data(bad: int = 3, n: int = 6) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    batches = [torch.randn(5, 8, 4, generator=random) for _ in range(n)]
    batches[bad][2] = 0.0  # a row without any variance
    return batches


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).pow(2).mean()


def incident_of(model: nn.Module, batches: list[Tensor] | None = None) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sg.Guard(model, optimizer, loss_fn) as guard:
        for batch in batches or data():
            guard.step(batch)
    assert len(guard.incidents) == 1
    return guard.incidents[0]


def test_a_step_that_fails_as_compiled_code_only_is_tried_without_it() -> None:
    model = Net()
    model.pool.compile(backend=wrong_backend(torch.sqrt, sqrt_of_less))
    diagnosis = incident_of(model).diagnosis
    assert diagnosis.cause.slug == "compiler_numerics"
    trials = {trial.remedy.slug: trial for trial in diagnosis.trials}
    assert trials["eager"].verified
    assert trials["eager"].remedy.code_change == "model.pool.compile()  # leave this out"
    assert trials["skip_batch"].verified
    assert "recompute_step" not in trials  # the same compiled step fails again


def test_a_fault_that_does_not_repeat_is_not_the_compilers() -> None:
    model, calls = Net(), {"n": 0}
    model.pool.compile(backend="aot_eager")

    def once_bad(module: nn.Module, batch: Tensor) -> Tensor:
        calls["n"] += 1
        return module(batch).pow(2).mean() * (float("nan") if calls["n"] == 3 else 1.0)

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sg.Guard(model, optimizer, once_bad) as guard:
        for batch in data():
            guard.step(batch)
    cause = guard.incidents[0].diagnosis.cause
    assert cause is None or cause.slug != "compiler_numerics"


def test_the_compiled_model_is_as_it_was_after_a_diagnosis() -> None:
    model = Net()
    model.pool.compile(backend=wrong_backend(torch.sqrt, sqrt_of_less))
    compiled = model.pool._compiled_call_impl
    incident_of(model)
    assert model.pool._compiled_call_impl is compiled
    assert "forward" not in model.pool.__dict__
    assert not torch.isfinite(model.pool(data()[3])).all()  # and it still runs as compiled code
