"""Lightning gives its optimizers a closure; one that evaluates the loss twice gets it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg

pl = pytest.importorskip("lightning.pytorch")


class SharpnessAware(torch.optim.SGD):
    """Takes the gradient at the worst point nearby, so its closure is not optional."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        again = torch.enable_grad()(closure)
        loss = again()
        moved = [(p, p.clone()) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, _ in moved:
            p.add_(p.grad, alpha=0.05)  # type: ignore[arg-type]
        again()
        for p, home in moved:
            p.copy_(home)
        super().step()
        return loss


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.calls = 0

    def training_step(self, batch: Any, number: int) -> Tensor:
        self.calls += 1
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return SharpnessAware(self.parameters(), lr=0.05)


def fit(rows: Tensor, *, guarded: bool) -> tuple[Module, Any]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Module()
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    guard = sg.attach(trainer) if guarded else None
    trainer.fit(module, DataLoader(TensorDataset(rows), batch_size=4))
    return module, guard


@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_that_evaluates_the_loss_twice_is_guarded_and_a_healthy_run_has_the_same_bits() -> None:
    rows = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    plain, _ = fit(rows, guarded=False)
    guarded, guard = fit(rows, guarded=True)
    assert (guard.summary()["steps"], guard.summary()["skipped"], guard.summary()["guard_faults"]) == (12, 0, {})
    assert guarded.calls == plain.calls == 24
    for one, other in zip(plain.parameters(), guarded.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")
def test_its_bad_batch_is_refused() -> None:
    rows = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    bad = copy.deepcopy(rows)
    bad[21, 2] = torch.nan
    module, guard = fit(bad, guarded=True)
    assert guard.summary()["skipped"] == 1
    assert all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())
