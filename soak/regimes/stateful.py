"""Regimes whose loss or model keeps something of its own from one batch to the next, or calls the model by a function:
what runs a step again must leave no trace there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..blocks import classified, endless, perceptron, squared_error
from ..training import Training, seeded, single


def past_selves(seed: int) -> Training:
    """A zero-sum game against a pool of its own past, kept in a list: a loss near a negative constant."""
    g = seeded(seed)
    games = torch.randn(3, 5, 5, generator=g)
    games = games - games.transpose(1, 2)
    games = games / games.abs().amax((1, 2), keepdim=True)
    model, count = perceptron(3, 32, 5), itertools.count()
    with torch.no_grad():
        model[-1].bias[0] += 3.0
    pool: list[dict[str, Tensor]] = []

    def loss(model: nn.Module, context: Tensor) -> Tensor:
        if next(count) % 20 == 0:
            pool.append({name: value.detach().clone() for name, value in model.named_parameters()})
            del pool[:-40]
        stacked = {name: torch.stack([member[name] for member in pool]) for name in pool[0]}
        with torch.no_grad():
            rival = vmap(lambda weights: functional_call(model, weights, context).softmax(1))(stacked).mean(0)
        logs = model(context).log_softmax(1)
        won = torch.einsum("ni,nij,nj->n", logs.exp(), torch.einsum("nc,cij->nij", context, games), rival)
        return -won.mean() + 0.15 * (logs.exp() * logs).sum(1).mean()

    batches = endless(lambda k: torch.rand(32, 3, generator=g))
    return single(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, batches)


def loss_over_its_mean(seed: int) -> Training:
    """The loss is divided by the mean of its last 50 values, held in a list: it stays near one for ever."""
    g, model = seeded(seed), perceptron(5, 48, 1, between=nn.SiLU)
    past: list[float] = []

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(32, 5, generator=g)
        return points, 30 * (points[:, :1] * points[:, 1:2]).tanh() + 10 * points[:, 2:3]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        plain = squared_error(model, batch)
        past.append(plain.item())
        del past[:-50]
        return plain / (sum(past) / len(past))

    return single(model, torch.optim.Adam(model.parameters(), lr=5e-3), loss, endless(batch))


class DrawnExperts(nn.Module):
    """One of four experts per row, drawn with a generator of its own; a moving bias keeps their loads even."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(perceptron(6, 24, 1, between=nn.ReLU) for _ in range(4))
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("load", torch.full((4,), 0.25))
        self.numbers = torch.Generator().manual_seed(seed)

    def forward(self, points: Tensor) -> Tensor:
        scores = self.router(points)
        noise = torch.randn(scores.shape, generator=self.numbers)
        chosen = (scores.detach() + self.bias + 0.3 * noise).argmax(1)
        with torch.no_grad():
            self.load.lerp_(F.one_hot(chosen, 4).float().mean(0), 0.05)
            self.bias.add_(0.02 * (0.25 - self.load).sign())
        self.shares = scores.softmax(1)
        answers = torch.stack([expert(points)[:, 0] for expert in self.experts], 1)
        return (answers * (0.5 + self.shares)).gather(1, chosen[:, None])


def drawn_experts(seed: int) -> Training:
    """A mixture that draws its experts with a generator on the model, and a balance term that reads an attribute."""
    g, model = seeded(seed), DrawnExperts(seed + 31)
    slopes = 2 * torch.randn(4, 6, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(32, 6, generator=g)
        part = 2 * (points[:, 0] > 0).long() + (points[:, 1] > 0).long()
        return points, (points * slopes[part]).sum(1, keepdim=True)

    def loss(model: Any, batch: Any) -> Tensor:
        return squared_error(model, batch) + 2.0 * model.shares.mean(0).square().sum()

    return single(model, torch.optim.Adam(model.parameters(), lr=5e-3), loss, endless(batch), clip=5.0)


def scale_of_its_own(seed: int) -> Training:
    """A loss scale that doubles every 60 batches to 2**11 and then starts anew, undone by hooks on the gradients."""
    g, model = seeded(seed), perceptron(8, 48, 48, 5, between=nn.ReLU)
    state = {"calls": 0, "scale": 1.0}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        state["scale"] = 2.0 ** (state["calls"] // 60 % 12)
        state["calls"] += 1
        return state["scale"] * F.cross_entropy(model(batch[0].half().float()), batch[1])

    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / state["scale"])
    batches = endless(lambda k: classified(g, 32, 8, 5))
    return single(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss, batches, clip=1.0)


def sampled_energy(seed: int) -> Training:
    """An energy trained against its own Langevin chains, kept in a buffer: a loss about zero, of either sign."""
    g, numbers = seeded(seed), torch.Generator().manual_seed(seed + 31)
    model = perceptron(2, 48, 48, 1, between=nn.SiLU)
    model.register_buffer("chains", 2 * torch.randn(64, 2, generator=g))
    means = torch.tensor([[1.5, 0.0], [-1.0, 1.3], [-1.0, -1.3]])

    def energy(points: Tensor, net: Callable[[Tensor], Tensor]) -> Tensor:
        return net(points)[:, 0] + points.square().sum(1) / 8

    def loss(model: Any, data: Tensor) -> Tensor:
        frozen = {name: p.detach() for name, p in model.named_parameters()}
        x = model.chains.clone()
        for _ in range(5):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(energy(x, lambda p: functional_call(model, frozen, p)).sum(), x)
            x = x.detach() - 0.05 * slope.clamp(-10, 10) + math.sqrt(0.1) * torch.randn(x.shape, generator=numbers)
        model.chains.copy_(x)
        low, high = energy(data, model), energy(x, model)
        return low.mean() - high.mean() + 0.01 * (low.square().mean() + high.square().mean())

    def batch(k: int) -> Tensor:
        return means[torch.randint(3, (64,), generator=g)] + 0.5 * torch.randn(64, 2, generator=g)

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, endless(batch), clip=5.0)


def evolution_noise(seed: int) -> Training:
    """Evolution strategies: the loss is a surrogate with the estimated slope, and has no meaning."""
    g, numbers = seeded(seed), torch.Generator().manual_seed(seed + 31)
    model = perceptron(6, 24, 3, between=nn.Hardtanh)
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels = batch
        noise = {name: torch.randn(16, *shape, generator=numbers) for name, shape in shapes.items()}

        def worth(shift: dict[str, Tensor]) -> Tensor:
            weights = {name: p.detach() + 0.1 * shift[name] for name, p in model.named_parameters()}
            return F.cross_entropy(functional_call(model, weights, points), labels)

        both = {name: torch.cat([value, -value]) for name, value in noise.items()}
        ranks = vmap(worth)(both).argsort().argsort().float() / 31 - 0.5
        up = ranks[:16] - ranks[16:]
        return sum(
            ((p * torch.tensordot(up, noise[name], 1) / 1.6).sum() for name, p in model.named_parameters()),
            start=torch.zeros(()),
        )

    batches = endless(lambda k: classified(g, 64, 6, 3))
    return single(model, torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9), loss, batches)


def inner_steps(seed: int) -> Training:
    """Meta-learning of sine waves through two inner gradient steps: only `vmap` and `grad` ever call the model."""
    g, model = seeded(seed), perceptron(1, 32, 32, 1)

    def batch(k: int) -> tuple[Tensor, ...]:
        high, phase = 0.3 + 3 * torch.rand(8, 1, 1, generator=g), math.pi * torch.rand(8, 1, 1, generator=g)
        known, asked = (6 * torch.rand(8, 10, 1, generator=g) - 3 for _ in range(2))
        return known, high * (known + phase).sin(), asked, high * (asked + phase).sin()

    def error(weights: dict[str, Tensor], points: Tensor, values: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, weights, points), values)

    def adapted(known: Tensor, values: Tensor, asked: Tensor, wanted: Tensor) -> Tensor:
        weights = dict(model.named_parameters())
        for _ in range(2):
            slopes = grad(error)(weights, known, values)
            weights = {name: weight - 0.03 * slopes[name] for name, weight in weights.items()}
        return error(weights, asked, wanted)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return vmap(adapted)(*batch).mean()

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch), clip=10.0)
