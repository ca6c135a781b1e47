"""sg.attach(trainer) for Lightning: the trainer and the module stay as they are."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, *, manual: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(16, 1)
        self.automatic_optimization = not manual

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        out = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        loss: Tensor = ((out - y) ** 2).mean()
        self.log("train_loss", loss)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(48, 8, generator=generator), torch.randn(48, 1, generator=generator)


def make_trainer(**options: Any) -> Any:
    return pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=options.pop("enable_checkpointing", False), **options,
    )  # fmt: skip


def fit(inputs: Tensor, targets: Tensor, *, accumulate: int, guard_options: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    module = Module()
    trainer = make_trainer(accumulate_grad_batches=accumulate, gradient_clip_val=1.0, **options)
    guard = sg.attach(trainer, **guard_options) if guard_options is not None else None
    trainer.fit(module, DataLoader(TensorDataset(inputs, targets), batch_size=4))
    (optimizer,) = trainer.optimizers
    moments = [value for state in optimizer.state.values() for value in state.values()]
    epoch = torch.tensor(trainer.lr_scheduler_configs[0].scheduler.last_epoch)
    return guard, [*module.state_dict().values(), *moments, epoch], trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_poisoned_batch_leaves_no_trace(accumulate: int, precision: Any) -> None:
    inputs, targets = data()
    bad = inputs.clone()
    bad[4 * 5 + 2, 3] = math.nan
    kept = [row for row in range(48) if row // 4 // accumulate != 5 // accumulate]
    _, wanted, _ = fit(inputs[kept], targets[kept], accumulate=accumulate, precision=precision)
    guard, found, trainer = fit(bad, targets, accumulate=accumulate, guard_options={}, precision=precision)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    (incident,) = guard.incidents
    assert (incident.diagnosis.cause.slug, incident.diagnosis.rows) == ("bad_input", (2,))
    assert guard.summary()["guard_faults"] == {}
    assert trainer.global_step == 12 // accumulate  # Lightning counts the refused step


def test_weights_that_turn_bad_are_never_saved_as_a_checkpoint(tmp_path: Path) -> None:
    inputs, targets = data()
    torch.manual_seed(0)
    module, trainer = Module(), make_trainer()
    guard = sg.attach(trainer, policy="observe")
    saved: list[bool] = []

    class Saver(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            path = tmp_path / f"{trainer.global_step}.ckpt"
            trainer.save_checkpoint(path)
            saved.append(path.exists())
            if trainer.global_step == 3:
                with torch.no_grad():
                    module.first.weight[0, 0] = math.nan

    trainer.callbacks.append(Saver())
    trainer.fit(module, DataLoader(TensorDataset(inputs, targets), batch_size=8))
    assert saved == [True] * 3 + [False] * 3
    assert guard.summary()["steps"] == 6


def test_manual_optimization_is_refused_bad_updates_too() -> None:
    inputs, targets = data()
    inputs[9, 0] = math.nan
    torch.manual_seed(0)
    module, trainer = Module(manual=True), make_trainer()
    guard = sg.attach(trainer)
    trainer.fit(module, DataLoader(TensorDataset(inputs, targets), batch_size=4))
    assert all(bool(torch.isfinite(value).all()) for value in module.parameters())
    assert guard.summary()["skipped"] == 1
    assert len(guard.incidents) == 1


def test_no_key_of_ours_is_logged_unless_it_was_asked_for(tmp_path: Path) -> None:
    inputs, targets = data()
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, log_every_n_steps=1,
    )  # fmt: skip
    sg.attach(trainer)
    trainer.fit(Module(), DataLoader(TensorDataset(inputs, targets), batch_size=4))
    columns = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "train_loss" in columns
    assert not any(column.startswith("steady") for column in columns)


def test_the_truth_is_in_the_logs(tmp_path: Path) -> None:
    inputs, targets = data()
    inputs[9, 0] = math.nan
    torch.manual_seed(0)
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, log_every_n_steps=1,
    )  # fmt: skip
    sg.attach(trainer, log_metrics=True)
    trainer.fit(Module(), DataLoader(TensorDataset(inputs, targets), batch_size=4))
    logged = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    columns = logged[0].split(",")
    losses = [line.split(",")[columns.index("train_loss")] for line in logged[1:]]
    skipped = [line.split(",")[columns.index("steady/skipped")] for line in logged[1:]]
    assert losses[2] == "nan"
    assert skipped[1:3] == ["0.0", "1.0"]


def test_a_trainer_attached_twice_is_refused_and_one_let_go_is_as_it_was() -> None:
    trainer = make_trainer()
    guard = sg.attach(trainer)
    with pytest.raises(sg.UsageError, match="already attached"):
        sg.attach(trainer)
    guard.close()
    assert not any(type(callback).__name__ == "LightningGuard" for callback in trainer.callbacks)
    sg.attach(trainer)
