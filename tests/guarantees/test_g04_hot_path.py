"""Guarantee 4: what a healthy step costs in host reads. On CUDA with a fused optimizer none, elsewhere one."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from drivers import ACCELERATE, GUARD, LIGHTNING, OPTIMIZER, RANKS, RUN, TRAINER, plain_all, train
from registry import guarantee
from scenario import Scenario

import steadygrad as sg

COUNTED = Scenario(steps=40, optimizer="adamw", count_reads=True)
ONE = "one host read per step"
CELLS = {
    GUARD: "none on CUDA with a fused optimizer; elsewhere " + ONE,
    OPTIMIZER: ONE,
    TRAINER: ONE,
    LIGHTNING: ONE,
    ACCELERATE: ONE,
    RUN: ONE,
    RANKS: ONE + " and one collective",
}


@guarantee("G4", CELLS)
def test_a_healthy_step_reads_the_device_at_most_once_more_than_the_plain_loop(entry: str) -> None:
    """Sampled checks may read more in the steps that they sample; they are few."""
    found, wanted = train(entry, COUNTED), plain_all(entry, [COUNTED])[0]
    assert (found.error, wanted.error) == (None, None), found.message
    assert len(found.reads) >= 39
    extra = [a - b for a, b in zip(found.reads[2:], wanted.reads[2:], strict=False)]
    assert statistics.median(extra) <= 1
    assert statistics.mean(extra) <= 3


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["Guard", "attach", "plain"])
def test_a_healthy_step_on_cuda_with_a_fused_optimizer_never_waits(how: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = [torch.randn(16, 8, device="cuda") for _ in range(40)]

    def loss_of(module: Any, batch: Any) -> Any:
        return module(batch).pow(2).mean()

    guard: Any = None
    if how == "Guard":
        guard = sg.Guard(model, optimizer, loss_of, diagnose="off")
    elif how == "attach":
        guard = sg.attach(optimizer, model=model)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        import warnings

        waits = []
        for index, batch in enumerate(batches):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if how == "Guard":
                    guard.step(batch)
                else:
                    loss_of(model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            if index >= 10:
                waits.append(len(caught))
    finally:
        torch.cuda.set_sync_debug_mode("default")
        if guard is not None:
            guard.close()
    assert statistics.median(waits) <= (1 if how == "attach" else 0)
