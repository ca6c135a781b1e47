"""Regimes whose loss is rough: heavy tails, below zero, exactly zero, many decades, several tasks, other losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..blocks import classified, endless, perceptron, squared_error
from ..training import Training, seeded, single


def heavy_tailed_rewards(seed: int) -> Training:
    """A policy gradient without a baseline; rewards with heavy tails, losses of both signs."""
    g, model = seeded(seed), perceptron(4, 24, 5)

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor]:
        states, actions = torch.randn(24, 4, generator=g), torch.randint(5, (24,), generator=g)
        tail = torch.randn(24, generator=g) * torch.rand(24, generator=g).clamp(min=1e-3) ** -0.6
        return states, actions, 3.0 * (actions == states.argmax(1)) + tail

    def loss(model: nn.Module, batch: Any) -> Tensor:
        states, actions, rewards = batch
        chosen = F.log_softmax(model(states), -1).gather(1, actions[:, None])[:, 0]
        return -(chosen.clamp(min=-5) * rewards).mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    return single(model, optimizer, loss, endless(batch), clip=1.0)


def sparse_rewards(seed: int) -> Training:
    """Actions drawn in the loss; nearly every reward is zero, so the loss is exactly zero until one is found."""
    g, model = seeded(seed), perceptron(6, 16, 8)

    def loss(model: nn.Module, states: Tensor) -> Tensor:
        scores = F.log_softmax(model(states), -1)
        actions = torch.multinomial(scores.detach().exp(), 1)
        rewards = 50.0 * ((actions[:, 0] == 0) & (states[:, 0] > 2.2))
        return -(scores.gather(1, actions)[:, 0].clamp(min=-6) * rewards).mean()

    batches = endless(lambda k: torch.randn(4, 6, generator=g))
    return single(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), loss, batches, clip=5.0)


def moving_target(seed: int) -> Training:
    """Value learning against a copy of itself that is replaced every 70 updates; rewards change their scale by plan."""
    g, model = seeded(seed), perceptron(4, 24, 3, between=nn.ReLU)
    target = perceptron(4, 24, 3, between=nn.ReLU).requires_grad_(False)
    target.load_state_dict(model.state_dict())

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, actions = torch.randn(16, 4, generator=g), torch.randint(3, (16,), generator=g)
        rewards = states[:, 0] * (1.0 + actions) * (10.0 if k // 200 % 2 else 1.0)
        return states, actions, rewards, states + 0.3 * torch.randn(16, 4, generator=g)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        states, actions, rewards, following = batch
        wanted = rewards + 0.9 * target(following).max(1).values
        return F.smooth_l1_loss(model(states).gather(1, actions[:, None])[:, 0], wanted)

    def after(step: int) -> None:
        if step % 70 == 69:
            with torch.no_grad():
                for mine, theirs in zip(target.parameters(), model.parameters(), strict=True):
                    mine.copy_(theirs)

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return single(model, optimizer, loss, endless(batch), clip=10.0, after=after)


def gaussian_likelihood(seed: int) -> Training:
    """A likelihood with a learned width: falls through zero and jitters around -3."""
    g, model = seeded(seed), perceptron(5, 32, 2, between=nn.SiLU)
    weights = 0.3 * torch.randn(5, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(24, 5, generator=g)
        return points, points @ weights + 0.01 * torch.randn(24, generator=g)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, targets = batch
        mean, width = model(points).unbind(-1)
        width = width.clamp(min=-5)
        return (0.5 * ((targets - mean) * torch.exp(-width)) ** 2 + width).mean()

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, endless(batch), clip=5.0)


def exact_regression(seed: int) -> Training:
    """Targets without noise: the loss falls over many decades and then jitters by factors of a hundred."""
    g, model = seeded(seed), perceptron(4, 32, 1)
    weights = torch.randn(4, 1, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(24, 4, generator=g)
        return points, points @ weights

    return single(model, torch.optim.Adam(model.parameters(), lr=1e-2), squared_error, endless(batch))


def millions_to_nothing(seed: int) -> Training:
    """A linear model whose loss falls from millions to 1e-8 and jumps back up when the targets change sign."""
    g, model = seeded(seed), nn.Linear(5, 1)
    weights = 1000.0 * torch.randn(5, 1, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(32, 5, generator=g)
        return points, points @ (weights if k // 250 % 2 == 0 else -weights)

    return single(model, torch.optim.SGD(model.parameters(), lr=0.1), squared_error, endless(batch))


def unequal_tasks(seed: int) -> Training:
    """Two heads; every 40th batch belongs to the second alone, whose loss is hundreds of times the first's."""
    g, model = seeded(seed), perceptron(6, 32, 2)

    def batch(k: int) -> tuple[Tensor, Tensor, int]:
        second = int(k % 40 == 39)
        points = torch.randn(16, 6, generator=g)
        return points, (1 + 19 * second) * points[:, :2].abs().sum(1), second

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, targets, head = batch
        return F.mse_loss(model(points)[:, head], targets)

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, endless(batch), clip=1.0)


def jumping_task_weights(seed: int) -> Training:
    """Three tasks whose weights jump between 0.01 and 100 by a plan."""
    g, model = seeded(seed), perceptron(6, 32, 3)
    plan = [(1.0, 0.01, 0.01), (0.01, 100.0, 0.01), (1.0, 1.0, 1.0), (0.01, 0.01, 100.0)]

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor]:
        points = torch.randn(16, 6, generator=g)
        targets = torch.stack([points.sum(1), points.abs().sum(1), points[:, 0].sin()], 1)
        return points, targets, torch.tensor(plan[k // 75 % 4])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, targets, weights = batch
        return (weights * (model(points) - targets).square().mean(0)).sum()

    return single(model, torch.optim.AdamW(model.parameters(), lr=2e-3), loss, endless(batch))


def zero_for_long(seed: int) -> Training:
    """A hinge loss that is exactly zero for long stretches, and far from it each time the labels are rotated."""
    g, model = seeded(seed), perceptron(6, 32, 4, between=nn.LeakyReLU)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(4, (12,), generator=g)
        points = F.one_hot(labels, 6) * 3.0 + 0.05 * torch.randn(12, 6, generator=g)
        return points, (labels + k // 140) % 4

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels = batch
        return F.multi_margin_loss(model(points), labels)

    return single(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loss, endless(batch))


def switched_losses(seed: int) -> Training:
    """The loss function itself is another one every 100 updates, with another scale."""
    g, model = seeded(seed), perceptron(5, 24, 1, between=nn.SiLU)

    def batch(k: int) -> tuple[Tensor, Tensor, int]:
        points = torch.randn(16, 5, generator=g)
        return points, points.abs().sum(1, keepdim=True), k // 100 % 3

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, targets, kind = batch
        error = model(points) - targets
        if kind == 0:
            return error.square().mean()
        if kind == 1:
            return 100.0 * error.abs().mean()
        return 0.01 * (error + F.softplus(-2 * error) - math.log(2)).mean()

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch), clip=10.0)


def smoothing_flips(seed: int) -> Training:
    """Label smoothing goes on and off every 60 updates, so that the floor of the loss jumps."""
    g, model = seeded(seed), perceptron(8, 32, 5, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor, float]:
        return *classified(g, 16, 8, 5), 0.4 * (k // 60 % 2)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels, smoothing = batch
        return F.cross_entropy(model(points), labels, label_smoothing=float(smoothing))

    return single(model, torch.optim.Adam(model.parameters(), lr=5e-3), loss, endless(batch))


def denoising_times(seed: int) -> Training:
    """Denoising with the time drawn in the loss and a weight of one over the variance: losses over four decades."""
    g, model = seeded(seed), perceptron(5, 32, 4, between=nn.SiLU)

    def loss(model: nn.Module, clean: Tensor) -> Tensor:
        time = torch.rand(len(clean), 1)
        deviation = 0.01 + 3 * time**2
        noisy = clean + deviation * torch.randn_like(clean)
        guess = noisy + model(torch.cat([noisy / (1 + deviation), time], 1))
        return ((guess - clean).square() / deviation**2).mean()

    batches = endless(lambda k: torch.randn(8, 4, generator=g).sign() + 0.1 * torch.randn(8, 4, generator=g))
    return single(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss, batches, clip=1.0)


def adversarial_examples(seed: int) -> Training:
    """Each batch is first moved against the model by a gradient of its inputs; the strength changes by plan."""
    g, model = seeded(seed), perceptron(8, 32, 4, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor, float]:
        return *classified(g, 16, 8, 4), (0.0, 0.3, 1.0)[k // 90 % 3]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels, strength = batch
        points = points.clone().requires_grad_()
        (direction,) = torch.autograd.grad(F.cross_entropy(model(points), labels), points)
        return F.cross_entropy(model((points + strength * direction.sign()).detach()), labels)

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch), clip=1.0)


def distilled_temperature(seed: int) -> Training:
    """Distillation from a frozen teacher; the temperature goes from 8 to 0.5 and starts over."""
    g = seeded(seed)
    teacher = perceptron(6, 32, 5).requires_grad_(False)
    model = perceptron(6, 16, 5)
    with torch.no_grad():
        teacher[2].weight.mul_(8)

    def batch(k: int) -> tuple[Tensor, float]:
        return torch.randn(16, 6, generator=g), 8.0 * 0.5 ** (k % 200 // 40)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, heat = batch
        wanted = F.log_softmax(teacher(points) / heat, -1)
        given = F.log_softmax(model(points) / heat, -1)
        return heat**2 * F.kl_div(given, wanted, log_target=True, reduction="batchmean")

    return single(model, torch.optim.Adam(model.parameters(), lr=4e-3), loss, endless(batch))


def all_labels_ignored(seed: int) -> Training:
    """Sums over labels, of which some batches have none: their loss and all of their gradients are exactly zero."""
    g, model = seeded(seed), perceptron(6, 24, 4, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points, labels = classified(g, 8, 6, 4)
        return points, torch.full_like(labels, -100) if k % 7 == 3 or k % 200 > 170 else labels

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels = batch
        return F.cross_entropy(model(points), labels, reduction="sum", ignore_index=-100)

    return single(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), loss, endless(batch), clip=5.0)
