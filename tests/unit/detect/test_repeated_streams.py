"""Streams that are delivered again and again, and batches whose rows are one sample or one number."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from steadygrad.detect.loop.measured.alike_samples import AlikeSamples
from steadygrad.detect.loop.measured.asked_copies import ask_copy
from steadygrad.detect.loop.measured.repeated_streams import ROUNDS, RepeatedStreams


class Stream(IterableDataset[Any]):
    """Numbers up to `size`, of which it knows no length."""

    def __init__(self, size: int) -> None:
        self.size, self.begun = size, 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        print("begun")
        return iter(range(self.size))


def prints(*numbers: int) -> list[frozenset[Any]]:
    return [frozenset({number}) for number in numbers]


def after_epochs(dataset: Any, epochs: Sequence[Any], *, trained: bool = True, **options: Any) -> RepeatedStreams:
    streams, loader = RepeatedStreams(), DataLoader(dataset, 2, **options)
    streams.begins(loader, (), trained=False)
    for epoch in epochs:
        streams.begins(loader, epoch, trained=trained)
    return streams


CUT = [prints(1, 2, 3)] * 4


@pytest.mark.parametrize("dataset", [Stream(100), TensorDataset(torch.arange(100))], ids=["stream", "map"])
def test_an_epoch_that_is_cut_and_begun_anew_four_times_is_seen(dataset: Any) -> None:
    assert after_epochs(dataset, CUT[:3]).found == ""
    assert "first 3 batches alone" in after_epochs(dataset, CUT).found


def test_the_data_set_of_the_program_is_not_asked_and_nothing_is_printed_or_drawn(capsys: Any) -> None:
    stream, state = Stream(100), random.getstate()
    assert after_epochs(stream, CUT).found
    assert stream.begun == 0
    assert capsys.readouterr().out == ""
    assert random.getstate() == state


@pytest.mark.parametrize(
    ("dataset", "epochs", "options"),
    [
        (Stream(20), CUT, {}),  # there is little more
        (Stream(100), [prints(1, 2, 3), prints(4, 5, 6)] * 4, {}),
        (Stream(100), [prints(1, 2, 3), prints(1, 2), prints(1, 2, 3), prints(1, 2)] * 2, {}),
        (Stream(100), [()] * 8, {}),
        (Stream(100), [[frozenset()] * 3] * 8, {}),  # nothing is known of the batches
        (TensorDataset(torch.arange(100)), CUT, {"shuffle": True}),
        ([1] * 100, CUT, {}),
    ],
)
def test_epochs_that_are_whole_or_differ_are_left_alone(dataset: Any, epochs: Any, options: Any) -> None:
    assert after_epochs(dataset, epochs, **options).found == ""


def test_an_evaluation_on_the_first_batches_is_left_alone() -> None:
    assert after_epochs(Stream(100), CUT, trained=False).found == ""


def test_workers_that_all_read_all_of_a_stream_are_seen() -> None:
    streams = RepeatedStreams()
    streams.of_workers([each for number in range(ROUNDS) for each in prints(number, number)], 2)
    assert "each of 2 workers" in streams.found


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4, 5, 6), (1, 1, 2, 2, 3, 4), (1, 1, 1, 1, 1, 1), (1, 1, 2, 2, 1, 1)])
def test_workers_that_share_a_stream_and_streams_of_one_batch_are_left_alone(numbers: tuple[int, ...]) -> None:
    streams = RepeatedStreams()
    streams.of_workers(prints(*numbers), 2)
    assert streams.found == ""


def test_a_data_set_that_cannot_be_copied_is_not_asked() -> None:
    def broken(_copy: Any) -> bool:
        raise ValueError

    assert ask_copy(lambda: None, lambda _copy: True) is None
    assert ask_copy([1], broken) is None
    assert ask_copy([1], lambda copy: copy()[0]) == 1


class Samples(Dataset[Any]):
    """Rows 0, 1, 2, ... by a way of giving them, with a label."""

    def __init__(self, how: str) -> None:
        self.how, self.buffer, self.array = how, torch.zeros(3), numpy.zeros(3)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Any, int]:
        row = torch.full((3,), float(index))
        if self.how == "buffer":
            return self.buffer.copy_(row), index % 2
        if self.how == "array":
            self.array[:] = index
            return self.array, index % 2
        if self.how == "zeros":
            return (row // 1000), index % 2
        if self.how == "places":
            return torch.arange(3.0), index % 2
        if self.how == "task":  # a row for each batch of eight
            return torch.full((3,), float(index // 8)), index % 2
        return row, 0 if self.how == "one label" else index % 2


def looked_at(dataset: Dataset[Any], **options: Any) -> AlikeSamples:
    samples, loader = AlikeSamples(), DataLoader(dataset, 8, **options)
    iterator = iter(loader)
    for indices in loader.batch_sampler:
        samples.delivered(iterator, indices, next(iterator))
    return samples


@pytest.mark.parametrize("how", ["buffer", "array"])
def test_samples_that_are_written_into_one_buffer_are_seen(how: str) -> None:
    assert "writes the next one into it" in looked_at(Samples(how)).aliased


@pytest.mark.parametrize("how", ["plain", "one label", "places", "task", "zeros"])
def test_samples_that_are_separate_are_left_alone(how: str) -> None:
    assert looked_at(Samples(how)).aliased == ""


def test_inputs_that_are_all_one_number_are_seen() -> None:
    assert "all numbers of the inputs of 4 batches are 0" in looked_at(Samples("zeros")).constant


@pytest.mark.parametrize("how", ["plain", "one label", "places", "task", "buffer"])
def test_inputs_with_several_values_are_left_alone(how: str) -> None:
    assert looked_at(Samples(how)).constant == ""


def test_data_sets_that_compare_by_their_numbers_or_cannot_be_referred_to_are_judged_without_a_fault() -> None:
    for dataset in (torch.rand(40, 3), [torch.rand(3)] * 40):
        assert looked_at(dataset).aliased == ""
        assert after_epochs(dataset, CUT, shuffle=True).found == ""


def test_token_ids_beside_a_mask_of_ones_are_left_alone() -> None:
    tokens, ones = torch.randint(0, 9, (64, 5)), torch.ones(64, 5)
    assert looked_at(TensorDataset(tokens, ones, torch.arange(64) % 2)).constant == ""


def test_batches_that_the_program_puts_together_itself_are_left_alone() -> None:
    def together(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        return rows[0][0].repeat(len(rows), 1), torch.tensor([label for _, label in rows])

    assert looked_at(Samples("plain"), collate_fn=together).aliased == ""
