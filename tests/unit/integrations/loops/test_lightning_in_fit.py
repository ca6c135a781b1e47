"""What a Lightning program does while fit runs goes on working with a guard attached."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import steadygrad as sg

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import StochasticWeightAveraging  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Small(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, raises_at: int = -1) -> None:
        super().__init__()
        self.layer, self.raises_at = nn.Linear(4, 1), raises_at
        self.kept: list[Tensor] = []

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if index == self.raises_at:
            raise KeyError("theirs")
        loss: Tensor = (self.layer(batch) - batch[:, :1]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class Gathers(Small):
    def training_step(self, batch: Tensor, index: int) -> Tensor | None:  # type: ignore[override]
        self.kept.append(batch)
        if len(self.kept) < 4:
            return None
        rows = torch.cat(self.kept)
        self.kept.clear()
        return super().training_step(rows, index)


def fit(model: nn.Module, guarded: bool, **options: Any) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    guard = sg.attach(trainer) if guarded else None
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    try:
        trainer.fit(model, DataLoader(data, batch_size=8))
    finally:
        if guard is not None:
            guard.close()
    return guard


def made(kind: type[Small], **given: Any) -> Small:
    torch.manual_seed(0)
    return kind(**given)


def test_a_schedule_made_while_fit_runs_finds_the_optimizer_as_it_expects() -> None:
    ends = []
    for guarded in (False, True):
        model = made(Small)
        fit(model, guarded, callbacks=[StochasticWeightAveraging(1e-2, swa_epoch_start=1)])
        ends.append(model.layer.weight.detach())
    assert torch.equal(*ends)


def test_batches_that_training_step_gathers_are_seen_once() -> None:
    ends = []
    for guarded in (False, True):
        model = made(Gathers)
        fit(model, guarded)
        ends.append(model.layer.weight.detach())
        assert model.kept == []
    assert torch.equal(*ends)


def test_no_hook_is_left_where_training_step_raises() -> None:
    model = made(Small, raises_at=5)
    with pytest.raises(KeyError, match="theirs"):
        fit(model, guarded=True)
    assert [part for part in model.modules() if part._forward_hooks or part._forward_pre_hooks] == []
