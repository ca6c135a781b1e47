"""Regimes whose settings change by plan: learning rates, weight decay, optimizer state, noise on the gradients."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from ..blocks import (
    SequenceModel,
    classified,
    counting,
    cross_entropy,
    endless,
    next_symbol_loss,
    perceptron,
    squared_error,
)
from ..training import Player, Training, seeded, single


def cosine_restarts(seed: int) -> Training:
    """Cosine annealing that restarts at a brisk rate every 120 updates."""
    g, model = seeded(seed), perceptron(8, 32, 32, 1, between=nn.SiLU)
    weights = torch.randn(8, 1, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(16, 8, generator=g)
        return points, (points @ weights).sin()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 120)
    return single(model, optimizer, squared_error, endless(batch), clip=1.0, scheduler=scheduler)


def stepped_rates(seed: int) -> Training:
    """The trunk's rate is zero at first; then the rates of head and trunk jump by factors of four and more."""
    g, model = seeded(seed), perceptron(8, 24, 24, 4, between=nn.ReLU)
    head, trunk = list(model[-1].parameters()), list(model[:-1].parameters())
    optimizer = torch.optim.SGD([{"params": head}, {"params": trunk}], lr=0.05, momentum=0.9)
    plans = [lambda k: (1.0, 4.0, 0.2)[k // 140 % 3], lambda k: (0.0, 1.0, 4.0)[k // 110 % 3]]
    scheduler = lr_scheduler.LambdaLR(optimizer, plans)
    batches = endless(lambda k: classified(g, 16, 8, 4))
    return single(model, optimizer, cross_entropy, batches, clip=2.0, scheduler=scheduler)


def one_cycle(seed: int) -> Training:
    """One-cycle schedules in a row: warm-up to a high rate with falling momentum, then down a thousandfold."""
    g, model = seeded(seed), perceptron(8, 32, 4, between=nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    class Cycles:
        """OneCycleLR, started anew whenever it has ended."""

        def __init__(self) -> None:
            self.steps = 0
            self.inner = lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=200)

        def step(self) -> None:
            self.steps += 1
            if self.steps % 199 == 0:
                self.inner = lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=200)
            else:
                self.inner.step()

    cycles = Cycles()
    batches = endless(lambda k: classified(g, 16, 8, 4))
    return single(model, optimizer, cross_entropy, batches, clip=2.0, after=lambda step: cycles.step())


def cyclic_rate(seed: int) -> Training:
    """A triangle between two rates, a factor of two hundred apart, every 80 updates; momentum runs against it."""
    g, model = seeded(seed), perceptron(6, 24, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = lr_scheduler.CyclicLR(optimizer, base_lr=5e-4, max_lr=0.1, step_size_up=20, step_size_down=60)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(16, 6, generator=g)
        return points, points[:, :3].abs().sum(1, keepdim=True)

    return single(model, optimizer, squared_error, endless(batch), clip=2.0, scheduler=scheduler)


def brisk_rate(seed: int) -> Training:
    """A rate several times too high and no clip: the loss spikes and recovers without help."""
    g, model = seeded(seed), SequenceModel()
    batches = endless(lambda k: counting(g, 8, 10, errors=0.2))
    return single(model, torch.optim.AdamW(model.parameters(), lr=2.5e-2), next_symbol_loss, batches)


def clipped_recurrence(seed: int) -> Training:
    """A plain recurrent net with an enlarged recurrent matrix; gradients of very unequal size, clipped to a quarter."""
    g, model = seeded(seed), SequenceModel(nn.RNN)
    with torch.no_grad():
        model.get_parameter("recurrent.weight_hh_l0").mul_(2.2)
    batches = endless(lambda k: counting(g, 6, 20, errors=0.2))
    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), next_symbol_loss, batches, clip=0.25)


def decay_shocks(seed: int) -> Training:
    """Weight decay a thousand times stronger for 10 of every 90 updates: weights shrink, the loss jumps and returns."""
    g, model = seeded(seed), perceptron(8, 32, 5, between=nn.ReLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)

    def before(step: int) -> None:
        for group in optimizer.param_groups:
            group["weight_decay"] = 10.0 if step % 90 >= 80 else 0.01

    return single(model, optimizer, cross_entropy, endless(lambda k: classified(g, 16, 8, 5)), before=before)


def forgotten_moments(seed: int) -> Training:
    """The optimizer's state is cleared every 85 updates, so that Adam takes full first steps again at once."""
    g, model = seeded(seed), perceptron(6, 32, 1, between=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def before(step: int) -> None:
        if step % 85 == 84:
            optimizer.state.clear()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(16, 6, generator=g)
        return points, points.prod(1, keepdim=True).tanh()

    return single(model, optimizer, squared_error, endless(batch), before=before)


def noisy_gradients(seed: int) -> Training:
    """Hooks add noise to every gradient that is now and then a hundred times the gradient."""
    g, model = seeded(seed), perceptron(8, 24, 4)
    passes = itertools.count()

    def noise(gradient: Tensor) -> Tensor:
        strength = 1.0 if next(passes) % 160 < 4 else 0.01
        return gradient + strength * torch.randn(gradient.shape, generator=noises)

    noises = torch.Generator().manual_seed(seed + 77)
    for parameter in model.parameters():
        parameter.register_hook(noise)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return single(model, optimizer, cross_entropy, endless(lambda k: classified(g, 16, 8, 4)), clip=3.0)


def two_optimizers_in_turn(seed: int) -> Training:
    """One model, two optimizers over the same weights: 30 updates with Adam, 30 with SGD, and so on."""
    g, model = seeded(seed), perceptron(8, 32, 4, between=nn.ReLU)
    players = [
        Player(model=model, optimizers=[torch.optim.Adam(model.parameters(), lr=5e-3)], loss=cross_entropy, clip=1.0),
        Player(model=model, optimizers=[torch.optim.SGD(model.parameters(), lr=0.2)], loss=cross_entropy, clip=1.0),
    ]
    batches = endless(lambda k: classified(g, 16, 8, 4))
    return Training(players=players, batches=batches, turn=lambda k: k // 30 % 2)


def averaged_weights(seed: int) -> Training:
    """A moving average of weights and statistics beside a noisy run at a constant high rate."""
    g = seeded(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98), use_buffers=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    return single(model, optimizer, cross_entropy, endless(lambda k: classified(g, 8, 8, 4)), averaged=averaged)


def uneven_windows(seed: int) -> Training:
    """Four micro-batches per update, epochs of 23 of them: the last update of each epoch has three."""
    g, model = seeded(seed), perceptron(6, 24, 1)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(1 if k % 23 == 22 else 6, 6, generator=g)
        return points, (5.0 if k % 23 == 22 else 1.0) * points.abs().sum(1, keepdim=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return single(model, optimizer, squared_error, endless(batch), clip=1.0, accumulate=4, epoch=23)


def even_windows(seed: int) -> Training:
    """Three micro-batches per update, one of them a hundred times the others."""
    g, model = seeded(seed), perceptron(6, 24, 1)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(6, 6, generator=g)
        return points, (10.0 if k % 3 == 1 else 1.0) * points.abs().sum(1, keepdim=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return single(model, optimizer, squared_error, endless(batch), clip=1.0, accumulate=3)
