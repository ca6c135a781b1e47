"""Where a framework owns the loop, a batch is called by the samples that its loader drew for it."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, dataloader

import steadygrad as sg
from steadygrad.integrations.loops.loader_samples import LoaderSamples
from steadygrad.journal.events import read_quarantine

BROKEN = 29
PATCHED = ("__init__", "_reset", "_next_index", "__next__")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def points(*, broken: bool = True) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs, targets = torch.randn(48, 8, generator=generator), torch.randn(48, 1, generator=generator)
    if broken:
        inputs[BROKEN, 3] = math.nan
    return TensorDataset(inputs, targets)


def shuffled(data: Dataset[Any], **options: Any) -> DataLoader[Any]:
    return DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(7), **options)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        out = self.inner(x)
        return out if labels is None else {"loss": ((out - labels) ** 2).mean()}


@pytest.fixture
def samples() -> Iterator[LoaderSamples]:
    faults: list[Exception] = []
    found = LoaderSamples(faults.append)
    yield found
    found.close()
    assert faults == []


def one_incident(guard: Any) -> Any:
    assert guard.summary()["skipped"] == 1
    assert guard.summary()["guard_faults"] == {}
    (incident,) = guard.incidents
    return incident


# -- at each framework


def test_a_transformers_trainer_has_the_broken_sample_named_while_it_evaluates_in_between(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Rows(Dataset[Any]):
        def __init__(self, data: TensorDataset) -> None:
            self.data = data

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            x, y = self.data[index]
            return {"x": x, "labels": y}

    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1,
        use_cpu=True, report_to=[], eval_strategy="steps", eval_steps=1, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(
        Net(), arguments, train_dataset=Rows(points()), eval_dataset=Rows(points(broken=False))
    )
    with sg.attach(trainer, run_dir=tmp_path / "run") as guard:
        trainer.train()
        incident = one_incident(guard)
    assert incident.diagnosis.sample_ids == (str(BROKEN),)
    assert str(BROKEN) in incident.batch_key.replace("+samples", ",").removeprefix("samples ").split(", ")
    assert [each.sample_ids for each in read_quarantine(tmp_path / "run")][-1] == (str(BROKEN),)


def test_lightning_has_the_broken_sample_named_from_the_first_epoch_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pl = pytest.importorskip("lightning.pytorch")

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss: Tensor = self.net(*batch)["loss"]
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.net(*batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, val_check_interval=3,
    )  # fmt: skip
    guard = sg.attach(trainer)
    trainer.fit(Module(), shuffled(points()), DataLoader(points(broken=False), 4))
    assert one_incident(guard).diagnosis.sample_ids == (str(BROKEN),)
    guard.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_which_fetches_ahead_has_the_broken_sample_named(workers: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    try:
        accelerator = accelerate.Accelerator(cpu=True)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, shuffled(points(), num_workers=workers))
        with sg.attach(accelerator, loss_fn=lambda model, batch: model(*batch)["loss"]) as guard:
            for batch in loader:
                accelerator.backward(model(*batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            assert one_incident(guard).diagnosis.sample_ids == (str(BROKEN),)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


def test_a_name_that_the_user_gives_a_batch_is_kept() -> None:
    accelerate = pytest.importorskip("accelerate")
    try:
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(
            net := Net(), torch.optim.SGD(net.parameters(), lr=1e-3), shuffled(points())
        )
        before = [vars(dataloader._BaseDataLoaderIter)[name] for name in PATCHED]
        guard = sg.attach(accelerator, loss_fn=lambda m, b: m(*b)["loss"], batch_key=lambda batch: "mine")
        assert [vars(dataloader._BaseDataLoaderIter)[name] for name in PATCHED] == before
        for batch in loader:
            accelerator.backward(model(*batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        assert one_incident(guard).batch_key == "mine"
        guard.close()
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


# -- by itself


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_called_by_its_samples_though_others_were_fetched_since(
    workers: int, samples: LoaderSamples
) -> None:
    given = list(shuffled(points(broken=False), num_workers=workers))
    numbers = [name for batch in given for name in samples.name(batch, 0).removeprefix("samples ").split(", ")]
    assert sorted(map(int, numbers)) == list(range(48))
    rows = [points(broken=False)[int(number)][0] for number in numbers]
    assert torch.equal(torch.stack(rows), torch.cat([x for x, _ in given]))


def test_a_batch_that_was_moved_is_the_same_batch(samples: LoaderSamples) -> None:
    loader = shuffled(points(broken=False))
    first, second = list(loader)[:2]
    name = samples.name(first, 0)
    moved = [tensor.double() for tensor in first]
    assert samples.name(moved, 3) == "3"
    samples.moved(first, moved)
    assert samples.name(moved, 3) == name != samples.name(second, 3)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(48.0).reshape(12, 4)


@pytest.mark.parametrize(
    "batch",
    [None, torch.randn(4, 8), {"text": "no tensor"}, torch.eye(4).to_sparse(), [torch.zeros(0)]],
    ids=["nothing", "of no loader", "no tensor", "sparse", "empty"],
)
def test_what_no_loader_gave_is_counted(batch: Any, samples: LoaderSamples) -> None:
    list(shuffled(points(broken=False)))
    assert samples.name(batch, 5) == "5"


def test_a_stream_without_indices_is_counted(samples: LoaderSamples) -> None:
    for number, batch in enumerate(DataLoader(Stream(), 4)):
        assert samples.name(batch, number) == str(number)


def test_batches_that_are_all_alike_are_counted_once_their_own_tensors_are_gone(samples: LoaderSamples) -> None:
    batches = [batch.clone() for (batch,) in DataLoader(TensorDataset(torch.zeros(16, 3)), 4)]
    assert [samples.name(batch, number) for number, batch in enumerate(batches)] == ["0", "1", "2", "3"]


def test_loaders_are_as_before_and_the_same_numbers_are_drawn() -> None:
    before = [vars(dataloader._BaseDataLoaderIter)[name] for name in PATCHED]
    torch.manual_seed(3)
    plain = [x for x, _ in DataLoader(points(broken=False), 4, shuffle=True)]
    after_plain = torch.get_rng_state()
    listening = LoaderSamples()
    torch.manual_seed(3)
    heard = [x for x, _ in DataLoader(points(broken=False), 4, shuffle=True)]
    assert all(map(torch.equal, plain, heard))
    assert torch.equal(torch.get_rng_state(), after_plain)
    listening.close()
    assert [vars(dataloader._BaseDataLoaderIter)[name] for name in PATCHED] == before


def test_batches_that_are_copied_on_the_host_are_known_from_the_second_on(samples: LoaderSamples) -> None:
    names = []
    for number, (inputs, _) in enumerate(DataLoader(points(broken=False), 4)):
        copied = inputs.clone()
        del inputs
        names.append(samples.name(copied, number))
    assert names[:3] == ["0", "samples 4, 5, 6, 7", "samples 8, 9, 10, 11"]


def test_a_part_of_a_batch_that_does_not_want_to_be_looked_at_is_passed_by() -> None:
    data_loader = pytest.importorskip("accelerate.data_loader")

    class Gone:
        pass

    dead = weakref.proxy(Gone())  # asked for its class it raises
    faults: list[Exception] = []
    listening = LoaderSamples(faults.append)
    try:
        listening._moves(lambda batch: batch, dead)
        assert data_loader.send_to_device({"x": torch.ones(2)}, "cpu")["x"].shape == (2,)
    finally:
        listening.close()
    assert faults == []
