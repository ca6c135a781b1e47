"""Numbers of many tensors are read at once, and are those of each alone."""

from __future__ import annotations

import math

import pytest
import torch

from steadygrad.diagnosis.replay.replay_observation import absmax, absmaxes, norm_of, norms_of

TENSORS = [
    torch.tensor([1.0, -3.0]),
    torch.tensor([2.0, math.nan, math.inf]),
    torch.tensor([-math.inf, 1.0], dtype=torch.float16),
    torch.tensor([60000.0, 60000.0], dtype=torch.float16),
    torch.tensor([3 + 4j, 0j]),
    torch.tensor([1e300], dtype=torch.float64),
    torch.nn.Parameter(torch.tensor([7.0])),
    torch.empty(0),
]


def told(numbers: list[float]) -> list[str]:
    return [repr(number) for number in numbers]  # NaN is not equal to itself


def test_magnitudes_and_lengths_read_together_are_those_of_each_alone() -> None:
    mixed = [*TENSORS, torch.tensor([5, 9]), torch.tensor([[0.0, 8.0]]).to_sparse()]
    assert told(absmaxes(mixed)) == told([absmax(tensor) for tensor in mixed])
    assert told(absmaxes(mixed))[-3:] == ["0.0", "0.0", "8.0"]
    assert told(norms_of(TENSORS)) == told([norm_of(tensor) for tensor in TENSORS])
    assert norms_of(TENSORS)[3] == pytest.approx(60000 * math.sqrt(2))  # beyond float16's range
    assert absmaxes([]) == []
