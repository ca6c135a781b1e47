"""Small models and data that several regimes share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

SYMBOLS = 20


def perceptron(*widths: int, between: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with an activation between each two of them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), between()]
    return nn.Sequential(*layers[:-1])


class SequenceModel(nn.Module):
    """Predicts the next symbol with one recurrent layer."""

    def __init__(self, layer: Callable[..., nn.Module] = nn.GRU, *, symbols: int = SYMBOLS, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(symbols, width)
        self.recurrent = layer(width, width, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        states, _ = self.recurrent(self.table(symbols))
        return self.head(states)


def next_symbol_loss(model: nn.Module, symbols: Tensor) -> Tensor:
    """Cross entropy of each symbol given those before it."""
    scores = model(symbols[:, :-1])
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), symbols[:, 1:].reshape(-1))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def squared_error(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return F.mse_loss(model(inputs), targets)


def counting(g: Generator, rows: int, length: int, *, symbols: int = SYMBOLS, errors: float = 0.0) -> Tensor:
    """Sequences that count upwards modulo `symbols` from a random start; a share of the entries is random."""
    begin = torch.randint(symbols, (rows, 1), generator=g)
    clean = (begin + torch.arange(length)).remainder(symbols)
    noise = torch.randint(symbols, clean.shape, generator=g)
    return torch.where(torch.rand(clean.shape, generator=g) < errors, noise, clean)


def classified(g: Generator, rows: int, inputs: int, classes: int) -> tuple[Tensor, Tensor]:
    """Points whose label is the largest of their first coordinates."""
    points = torch.randn(rows, inputs, generator=g)
    return points, points[:, :classes].argmax(1)


def endless(make: Callable[[int], Any]) -> Iterator[Any]:
    """make(0), make(1), and so on."""
    return map(make, itertools.count())
