"""Door 3 and the laws: a program that knows nothing of us, bit for bit."""

from __future__ import annotations

import copy
import gc
import io
import math
from typing import Any

import pytest
import torch
from specimens import Setup, batches, differing, run_plain, state_of
from torch import Tensor, nn


def poisoned(batch: Tensor) -> Tensor:
    bad = batch.clone()
    bad[1, 2] = math.nan
    return bad


OPTIMIZERS: dict[str, Any] = {
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "muon_like": lambda p: NaiveSgd(p, lr=1e-2),
}


class NaiveSgd(torch.optim.Optimizer):
    """A third-party optimizer that never asks whether there is a gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


def no_faults(watch: Any, *, skipped: int) -> None:
    assert watch.barrier.faults == {}
    assert sum(log.ledger.skipped for log in watch.ledger.log) == skipped


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_healthy_program_is_bit_identical(name: str, watching: Any) -> None:
    data = batches(12)
    plain = state_of(run_plain(data, make_optimizer=OPTIMIZERS[name]))
    watch = watching()
    assert differing(plain, state_of(run_plain(data, make_optimizer=OPTIMIZERS[name]))) == []
    no_faults(watch, skipped=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("where", [0, 7])
def test_a_bad_batch_leaves_no_trace(name: str, where: int, watching: Any) -> None:
    """Weights, moments, schedule, EMA, running statistics, counters, three kinds of random numbers."""
    data = batches(12)
    plain = state_of(run_plain(data, make_optimizer=OPTIMIZERS[name]))
    watch = watching()
    bad = [*data[:where], poisoned(data[3]), *data[where:]]
    assert differing(plain, state_of(run_plain(bad, make_optimizer=OPTIMIZERS[name]))) == []
    no_faults(watch, skipped=1)


def test_a_bad_micro_batch_drops_its_window_exactly(watching: Any) -> None:
    data = batches(12)
    plain = state_of(run_plain(data, accumulate=2))
    watch = watching()
    bad = [*data[:4], data[4], poisoned(data[5]), *data[4:]]
    assert differing(plain, state_of(run_plain(bad, accumulate=2))) == []
    no_faults(watch, skipped=1)


def test_a_diagnosis_leaves_no_trace_either(watching: Any) -> None:
    data = batches(10)
    plain = state_of(run_plain(data))
    watch = watching(diagnose="auto")
    assert differing(plain, state_of(run_plain([*data[:5], poisoned(data[3]), *data[5:]]))) == []
    (log,) = watch.ledger.log
    assert log.incidents[0].diagnosis.cause.slug == "bad_input"
    no_faults(watch, skipped=1)


def test_without_a_watch_the_same_batch_poisons_everything() -> None:
    data = batches(4)
    it = run_plain([*data[:2], poisoned(data[0]), *data[2:]])
    assert not all(bool(torch.isfinite(p).all()) for p in it.model.parameters())


def test_observing_changes_nothing_at_all(watching: Any) -> None:
    data = [*batches(4), poisoned(batches(4)[0])]
    plain = state_of(run_plain(data))
    watch = watching(policy="observe")
    assert differing(plain, state_of(run_plain(data))) == []
    no_faults(watch, skipped=0)


def test_clipping_is_the_same_to_the_bit_and_names_the_guilty_tensor(watching: Any) -> None:
    """A NaN norm turns every gradient NaN in clip_grad_norm_, so the culprit must be seen before."""
    watch = watching()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    twin = copy.deepcopy(model)
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        its.grad = mine.grad.clone()  # type: ignore[union-attr]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    watch.stop()
    assert torch.equal(norm, nn.utils.clip_grad_norm_(twin.parameters(), 0.01))
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)  # type: ignore[arg-type]
    watch.start()
    model[0].bias.grad[1] = math.nan  # type: ignore[union-attr,index]
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    (log,) = watch.ledger.log
    (incident,) = log.incidents
    assert "not finite in 1 of 4 tensors: 0.bias" in incident.decision.reason


def test_a_norm_that_overflows_although_every_gradient_is_finite_is_refused(watching: Any) -> None:
    """Clipping would multiply by zero, and learning would be dead without a NaN anywhere."""
    watch = watching()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    model.weight.grad = torch.full_like(model.weight, 1e30)
    before = model.weight.detach().clone()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert torch.equal(model.weight.detach(), before)
    no_faults(watch, skipped=1)


def test_copies_and_saved_models_hold_nothing_of_ours(watching: Any) -> None:
    watching()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert len(model._forward_pre_hooks) == 1
    file = io.BytesIO()
    torch.save(model, file)
    assert b"steadygrad" not in file.getvalue()
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert twin(torch.randn(3, 4)).shape == (3, 4)
        assert not any("steadygrad" in repr(hook) for hook in twin._forward_pre_hooks.values())


def test_taking_the_watch_off_leaves_torch_as_it_was(watching: Any) -> None:
    from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler
    from torch.optim.swa_utils import AveragedModel
    from torch.utils.data import dataloader

    places = [
        (Tensor, "backward"), (nn.utils, "clip_grad_norm_"), (nn.utils.clip_grad, "clip_grad_norm_"),
        (torch.optim.Optimizer, "__init__"), (torch.optim.Optimizer, "zero_grad"), (nn.Module, "zero_grad"),
        (LRScheduler, "step"), (LRScheduler, "__init__"), (CosineAnnealingWarmRestarts, "step"),
        (AveragedModel, "update_parameters"), (torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "scale"),
        (dataloader._BaseDataLoaderIter, "__next__"), (dataloader._BaseDataLoaderIter, "_next_index"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name in places]
    watch = watching()
    assert all(getattr(owner, name) is not was for (owner, name), was in zip(places, before, strict=True))
    model = nn.Linear(2, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    watch.stop()
    assert [getattr(owner, name) for owner, name in places] == before
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_the_program_without_a_known_order_of_zero_grad_is_exact_too(watching: Any) -> None:
    """forward, zero_grad, backward, step: the order of most tutorials."""

    def loop(data: list[Tensor]) -> Setup:
        from specimens import setup

        it = setup()
        for batch in data:
            loss = it.loss_fn(it.model, batch)
            it.optimizer.zero_grad()
            loss.backward()
            it.optimizer.step()
            it.scheduler.step()
        return it

    data = batches(8)
    plain = state_of(loop(data))
    watch = watching()
    assert differing(plain, state_of(loop([*data[:3], poisoned(data[0]), *data[3:]]))) == []
    no_faults(watch, skipped=1)


class MovesItsKey(nn.Module):
    """A frozen parameter that forward moves, as the encoder of the keys in momentum contrast."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(3, 1)
        self.key = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.key.lerp_(self.query.weight[0], 0.5)
        return (self.query(x).squeeze() - x @ self.key).pow(2).mean()


def test_a_frozen_parameter_that_the_first_refused_batch_moved_is_named_in_the_end(watching: Any) -> None:
    gc.collect()  # models of other tests
    watch = watching()
    model = MovesItsKey()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for value in (math.nan, 1.0):
        optimizer.zero_grad()
        model(torch.full((2, 3), value)).backward()
        optimizer.step()
    told = watch.finish()["notices"]["not_restored"]  # and random numbers, where a model of another test has dropout
    assert told.startswith("a refused batch changed ")
    assert "key, which may not be as before it" in told


@pytest.mark.filterwarnings("ignore")  # of the compiler, about its own internals
def test_a_model_compiled_as_one_graph_stays_one_graph_and_is_guarded(watching: Any) -> None:
    watch = watching()
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for number in range(4):
        x = torch.randn(4, 3)
        x[0, 0] = math.nan if number == 2 else 0.0
        optimizer.zero_grad()
        compiled(x).pow(2).mean().backward()
        optimizer.step()
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())
    assert model[1].num_batches_tracked == 3
    no_faults(watch, skipped=1)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about its own internals
def test_a_compiled_step_is_guarded(watching: Any) -> None:
    watch = watching()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 3), math.nan if number == 1 else 1.0)).sum().backward()
        step()
    assert bool(torch.isfinite(model.weight).all())
    no_faults(watch, skipped=1)
