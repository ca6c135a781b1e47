"""What a regime builds: a model, its optimizers, its data and everything a training loop needs to know about them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LossFunction = Callable[[nn.Module, Any], Tensor]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(kw_only=True)
class Player:
    """One model with the optimizers that step together on one loss. Most regimes have one player, a GAN has two."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    loss: LossFunction
    clip: float | None = None


@dataclass(kw_only=True)
class Training:
    """One training, ready to start.

    Attributes:
        players: who is trained; `turn` says whose update number k is.
        batches: an endless iterator; its noise comes from a generator that only it uses.
        precision: "fp32", "bf16" or "fp16"; a loop enters autocast for the last two.
        scaler: the loss scale of an fp16 regime.
        scheduler: stepped once after each applied update.
        accumulate: micro-batches per update. With `epoch`, so many micro-batches make an epoch, and an epoch that does
            not divide ends with a smaller window.
        averaged: an AveragedModel, updated after each update.
        before, after: what the program itself does around update k, such as unfreezing a layer.
        closure: the optimizer evaluates the loss itself, as LBFGS does.
        device: where it is trained; every regime is written for a CPU, `devices.py` moves it.
    """

    players: Sequence[Player]
    batches: Iterator[Any]
    turn: Callable[[int], int] = lambda k: 0
    precision: str = "fp32"
    scaler: Any = None
    scheduler: Any = None
    accumulate: int = 1
    epoch: int | None = None
    averaged: Any = None
    before: Callable[[int], None] = lambda k: None
    after: Callable[[int], None] = lambda k: None
    closure: bool = False
    device: str = "cpu"

    @property
    def optimizers(self) -> list[Optimizer]:
        return [optimizer for player in self.players for optimizer in player.optimizers]

    @property
    def models(self) -> list[nn.Module]:
        """Every model once, also where two players train the same one."""
        return list({id(player.model): player.model for player in self.players}.values())

    def windows(self) -> Iterator[int]:
        """How many micro-batches each update takes, without end."""
        if self.epoch is None:
            return itertools.repeat(self.accumulate)
        whole, rest = divmod(self.epoch, self.accumulate)
        return itertools.cycle([self.accumulate] * whole + ([rest] if rest else []))

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        return torch.autocast(self.device, dtype=AUTOCAST.get(self.precision), enabled=self.precision in AUTOCAST)


def single(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loss: LossFunction,
    batches: Iterator[Any],
    *,
    clip: float | None = None,
    **more: Any,
) -> Training:
    """A training with one player, which is what nearly all are."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    player = Player(model=model, optimizers=optimizers, loss=loss, clip=clip)
    return Training(players=[player], batches=batches, **more)


def seeded(seed: int) -> torch.Generator:
    """Seeds torch's own random numbers, for weights and dropout, and gives a generator of the data's own."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(1_000_003 + seed)
