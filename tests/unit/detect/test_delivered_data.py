"""What loaders deliver: weights of a few samples, classes one after another, samples that a data set rewrites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from steadygrad.detect.loop.measured.delivered_data import DeliveredData

_CLASSES = torch.arange(4).repeat_interleave(64)
_INPUTS = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))


def epoch(data: DeliveredData, loader: Any, *, trains: bool = True) -> None:
    """One epoch, with the calls that come from a loader and from backward."""
    model = nn.Linear(6, 4)
    data.begins(loader)
    indices = iter(loader._index_sampler) if not isinstance(loader.dataset, IterableDataset) else iter(())
    for each in indices:
        if data.kept.watching:
            data.kept.drawing()
        inputs, classes = batch = loader.collate_fn([loader.dataset[index] for index in each])
        if data.kept.watching:
            data.kept.delivered(each[0], batch)
        if trains:
            data.classes.trained(F.cross_entropy(model(inputs), classes))


def sorted_set() -> TensorDataset:
    return TensorDataset(_INPUTS, _CLASSES)


# -- weights of classes in the place of weights of samples


@pytest.mark.parametrize(("few", "seen"), [(4, True), (200, False), (256, False)])
def test_a_sampler_with_weights_of_classes_is_seen(few: int, seen: bool) -> None:
    data = DeliveredData()
    data.begins(DataLoader(sorted_set(), 16, sampler=WeightedRandomSampler(torch.ones(few), 256)))
    assert bool(data.few_drawn) is seen


def test_a_sampler_that_draws_a_few_samples_once_is_left_alone() -> None:
    data = DeliveredData()
    data.begins(DataLoader(sorted_set(), 4, sampler=WeightedRandomSampler(torch.ones(8), 8)))
    assert data.few_drawn == ""


# -- classes one after another


def test_classes_one_after_another_are_seen_in_the_second_epoch() -> None:
    data, loader = DeliveredData(), DataLoader(sorted_set(), 16)
    epoch(data, loader)
    assert data.classes.found == ""
    epoch(data, loader, trains=False)
    epoch(data, loader)
    assert "16 of 16 batches" in data.classes.found
    assert "the 4 classes" in data.classes.found


def mixed() -> DataLoader:
    return DataLoader(TensorDataset(_INPUTS, _CLASSES.flip(0)[torch.randperm(256)]), 16)


def in_turn() -> DataLoader:
    """Each batch has one class, and the classes take turns."""
    return DataLoader(TensorDataset(_INPUTS, _CLASSES.reshape(4, 4, 16).transpose(0, 1).flatten()), 16)


def shuffled() -> DataLoader:
    return DataLoader(sorted_set(), 16, shuffle=True)


def one_class() -> DataLoader:
    return DataLoader(TensorDataset(_INPUTS, torch.zeros(256, dtype=torch.long)), 16)


@pytest.mark.parametrize("make", [mixed, in_turn, shuffled, one_class])
def test_classes_in_another_order_are_left_alone(make: Any) -> None:
    torch.manual_seed(0)
    data, loader = DeliveredData(), make()
    for _ in range(3):
        epoch(data, loader)
    assert data.classes.found == ""


def test_tasks_that_are_learnt_one_after_another_and_sorted_validation_data_are_left_alone() -> None:
    data = DeliveredData()
    for task in range(0, 256, 64):
        for _ in range(3):
            epoch(data, DataLoader(Subset(sorted_set(), range(task, task + 64)), 4))
    for _ in range(3):
        epoch(data, DataLoader(sorted_set(), 16), trains=False)
    assert data.classes.found == ""


def test_losses_of_other_kinds_and_data_without_a_length_are_not_judged() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    data = DeliveredData()
    epoch(data, DataLoader(Stream(), 4))
    data.begins(DataLoader(sorted_set(), 16))
    data.classes.trained(nn.Linear(6, 1)(_INPUTS).pow(2).mean())
    assert not data.classes.watching


# -- samples that are rewritten


class Kept(Dataset[Any]):
    """Keeps its samples; `change` is done to a sample before it is given."""

    def __init__(self, change: Any, kept: Any = None) -> None:
        self.x, self.change = (_INPUTS * 3 + 2 if kept is None else kept), change
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.as_tensor(self.change(self, self.x[index], index)), _CLASSES[index]


def in_place(_set: Kept, sample: Any, _index: int) -> Any:
    sample -= 2
    sample /= 3
    return sample


def on_a_copy(_set: Kept, sample: Any, _index: int) -> Any:
    return (sample - 2) / 3


def once(kept: Kept, sample: Any, index: int) -> Any:
    if index not in kept.seen:
        kept.seen.add(index)
        in_place(kept, sample, index)
    return sample


def flipped(_set: Kept, sample: Any, _index: int) -> Any:
    sample[:] = sample.flip(0)
    return sample


def counted(_set: Kept, sample: Any, _index: int) -> Any:
    """What is written is not what is given."""
    sample += 1
    return torch.ones(6)


@pytest.mark.parametrize("kept", [None, _INPUTS.double().numpy() * 3 + 2], ids=["tensor", "array"])
def test_samples_that_are_normalised_again_in_each_epoch_are_seen(kept: Any) -> None:
    data = DeliveredData()
    loader = DataLoader(Kept(in_place, numpy.array(kept) if kept is not None else None), 16, shuffle=True)
    loader.collate_fn = lambda rows: (torch.stack([x for x, _ in rows]).float(), torch.stack([y for _, y in rows]))
    for number in range(3):
        assert data.kept.found == "", number
        epoch(data, loader)
    data.begins(loader)
    assert "writes into the samples that it keeps" in data.kept.found


@pytest.mark.parametrize("change", [on_a_copy, once, flipped, counted])
def test_copies_caches_and_augmentations_that_change_no_distribution_are_left_alone(change: Any) -> None:
    data, loader = DeliveredData(), DataLoader(Kept(change), 16)
    for _ in range(5):
        epoch(data, loader)
    assert data.kept.found == ""


def test_samples_that_the_program_makes_anew_between_epochs_are_left_alone() -> None:
    data, dataset = DeliveredData(), Kept(on_a_copy)
    for number in range(4):
        dataset.x = _INPUTS * number
        epoch(data, DataLoader(dataset, 16))
    assert data.kept.found == ""
