"""Memory that a step reads and did not write: the verdict comes from replays without it, and the memory is restored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import steadygrad as sg
from steadygrad.diagnosis.interventions.backend.unwritten_memory import ClearStaleRows


class Opaque(torch.autograd.Function):
    """A kernel that torch does not see, as a captured graph is none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = torch.zeros(x.shape[0], weight.shape[0])
        out.numpy()[:] = x.detach().numpy() @ weight.detach().numpy().T
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, _ = ctx.saved_tensors
        return None, gradient.T @ x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return Opaque.apply(x, self.weight)


def data() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(6, 4, generator=random) for _ in range(6)]


def guarded(loss_fn: Any, batches: list[Tensor]) -> Any:
    model = Net()
    with sg.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_fn) as guard:
        for batch in batches:
            guard.step(batch)
    return guard


def test_rows_left_in_a_static_buffer_are_the_cause_and_are_as_they_were_afterwards() -> None:
    static, weights = torch.zeros(6, 4), torch.ones(6)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        n = len(batch)
        static[:n].copy_(batch)  # here
        weights.zero_()
        weights[:n] = 1.0
        if not torch.isfinite(static[:n]).all():
            return model.weight.sum() * 0.0  # the user's check: leave the batch out
        return (model(static).pow(2).mean(1) * weights).sum() / weights.sum()

    batches = data()
    batches[2][5] = float("nan")
    batches[3] = batches[3][:4]
    guard = guarded(loss_fn, batches[:4])
    assert static[5].isnan().all()
    assert not static[:5].isnan().any()
    diagnosis = guard.incidents[0].diagnosis
    assert (diagnosis.cause.slug, diagnosis.phase) == ("poisoned_state", "state")
    line = loss_fn.__code__.co_firstlineno + 2
    assert diagnosis.origin.source == f"{__file__}:{line}"
    trials = {trial.remedy.slug: trial for trial in diagnosis.trials}
    assert trials["zero_tail"].verified
    assert "buffer.zero_()" in str(trials["zero_tail"].remedy.code_change)


class Queue(TorchFunctionMode):
    """A device whose copies run later: what was copied is read when the copy runs."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "copy_" and kwargs.get("non_blocking"):
            self.waiting.append((args[0], args[1]))
            return args[0]
        return func(*args, **kwargs)

    def run(self) -> None:
        for target, source in self.waiting:
            target.copy_(source)
        self.waiting.clear()


def test_a_buffer_that_is_written_while_its_copy_is_queued_is_a_race() -> None:
    staging, queue = torch.zeros(6, 4), Queue()

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        staging.copy_(batch)
        x = torch.zeros(6, 4)
        x.copy_(staging, non_blocking=True)  # here
        if batch[0, 0] > 50:
            staging.fill_(float("nan"))  # refilled too early
        queue.run()
        return model(x).pow(2).mean()

    batches = data()
    batches[3][0, 0] = 99.0
    with queue:
        guard = guarded(loss_fn, batches)
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis.cause.slug == "async_race"
    assert diagnosis.origin.source == f"{__file__}:{loss_fn.__code__.co_firstlineno + 3}"
    assert "wait_for_copy" in {trial.remedy.slug for trial in diagnosis.trials if trial.verified}


def test_a_failure_that_has_nothing_to_do_with_memory_gets_no_such_verdict() -> None:
    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        scratch = torch.empty(6, 4)
        scratch.copy_(batch)
        return model(scratch).pow(2).mean() * (float("nan") if batch[0, 0] > 50 else 1.0)

    batches = data()
    batches[3][0, 0] = 99.0
    diagnosis = guarded(loss_fn, batches).incidents[0].diagnosis
    assert diagnosis.cause.slug not in ("async_race", "uninitialised")
    assert (diagnosis.origin.phase, diagnosis.origin.op) == ("loss", "mul")
    assert not {trial.remedy.slug for trial in diagnosis.trials} & {"zero_tail", "wait_for_copy"}


def test_buffers_are_restored_where_the_step_raises() -> None:
    buffer = torch.tensor([1.0, float("nan")])
    change = ClearStaleRows()

    def step() -> None:
        with change.around():
            buffer[:1].copy_(torch.zeros(1))
            assert buffer[1] == 0
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        step()
    change.undo(None)  # type: ignore[arg-type]
    assert buffer[0] == 1
    assert buffer[1].isnan()
