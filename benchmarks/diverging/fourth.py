"""A fourth set: twenty-four trainings that diverge, and twelve rough ones that do not."""
# ruff: noqa: E501
# ruff: noqa: E501

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    gelu,
    huber_loss,
    mse_loss,
    normalize,
    one_hot,
    relu,
    scaled_dot_product_attention,
    silu,
    softplus,
)

from .first import (
    Batch,
    Draw,
    Loss,
    Training,
    adam,
    adamw,
    momentum,
    nadam,
    nesterov,
    rmsprop,
    sgd,
)

Made = tuple[nn.Module, Loss, Draw]


def adagrad(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=lr)


# -- parts


def dense(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def wrong(labels: Tensor, classes: int, g: torch.Generator, share: float = 0.12) -> Tensor:
    """Some of the labels drawn anew."""
    other = torch.randint(0, classes, labels.shape, generator=g)
    return torch.where(torch.rand(labels.shape, generator=g) < share, other, labels)


def log_cosh(error: Tensor) -> Tensor:
    return (error + softplus(-2 * error) - math.log(2.0)).mean()


def by_class(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def by_value(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


class Encoder(nn.Module):
    """One layer of an encoder, the norm before or after."""

    def __init__(self, width: int, heads: int, *, post: bool) -> None:
        super().__init__()
        self.heads, self.post = heads, post
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def look(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        answer: Tensor = self.o(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return answer

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.look(x))
            done: Tensor = self.norm2(x + self.down(relu(self.up(x))))
            return done
        x = x + self.look(self.norm1(x))
        done = x + self.down(gelu(self.up(self.norm2(x))))
        return done


# -- rates too high from the start


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class Turning(nn.Module):
    """A layer with rotary places and a gated feed-forward part."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        half = width // heads // 2
        angle = torch.arange(float(length))[:, None] * 100.0 ** (-torch.arange(float(half)) / half)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def turn(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        answer: Tensor = x + self.down(silu(self.gate(y)) * self.up(y))
        return answer


class Verses(nn.Module):
    def __init__(self, words: int, width: int = 40) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=0.05)
        self.body, self.norm = nn.Sequential(*(Turning(width, 4, 20) for _ in range(2))), RMSNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.norm(self.body(self.words(tokens))) @ self.words.weight.T
        return answer


def verses(g: torch.Generator) -> Made:
    """Text where a word depends on the two before it."""
    one, two = 1.5 * torch.randn(18, 18, generator=g), 1.5 * torch.randn(18, 18, generator=g)

    def draw(g: torch.Generator) -> Batch:
        text = [torch.randint(0, 18, (14,), generator=g) for _ in range(2)]
        for _ in range(17):
            text.append(torch.multinomial((one[text[-1]] + two[text[-2]]).softmax(-1), 1, generator=g)[:, 0])
        tokens = torch.stack(text, 1)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return Verses(18), loss, draw


class Shortcut(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width), nn.ReLU(),
                                   nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return relu(x + self.inner(x))


def resnet(width: int, classes: int, norm: Callable[[int], nn.Module], channels: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, 3, stride=2, padding=1), norm(width), nn.ReLU(), Shortcut(width, norm),
                         Shortcut(width, norm), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))  # fmt: skip


def gratings(g: torch.Generator) -> Made:
    """The slant of a grating in noise."""
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")

    def draw(g: torch.Generator) -> Batch:
        slant = torch.randint(0, 6, (24,), generator=g)
        angle = (slant * math.pi / 6)[:, None, None]
        phase = 2 * math.pi * torch.rand(24, 1, 1, generator=g)
        x = torch.sin(1.3 * (rows * angle.sin() + columns * angle.cos()) + phase)
        return (x + 0.5 * torch.randn(24, 12, 12, generator=g))[:, None], wrong(slant, 6, g)

    return resnet(12, 6, lambda width: nn.GroupNorm(4, width)), by_class, draw


class Letters(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters, self.cell, self.head = (
            nn.Embedding(letters, 16),
            nn.RNN(16, 48, batch_first=True),
            nn.Linear(48, letters),
        )

    def forward(self, text: Tensor) -> Tensor:
        answer: Tensor = self.head(self.cell(self.letters(text))[0])
        return answer


def letters(g: torch.Generator) -> Made:
    """Letters spoken by a hidden chain of states."""
    move = (2.0 * torch.randn(5, 5, generator=g)).softmax(-1)
    speak = (2.0 * torch.randn(5, 14, generator=g)).softmax(-1)

    def draw(g: torch.Generator) -> Batch:
        state, text = torch.randint(0, 5, (16,), generator=g), []
        for _ in range(21):
            text.append(torch.multinomial(speak[state], 1, generator=g)[:, 0])
            state = torch.multinomial(move[state], 1, generator=g)[:, 0]
        tokens = torch.stack(text, 1)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return Letters(14), loss, draw


class Stirred(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places, self.channels = dense(places, 24, places, act=nn.GELU), dense(width, 64, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.norm1(x).mT).mT
        answer: Tensor = x + self.channels(self.norm2(x))
        return answer


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 28, 4, stride=4)
        self.body, self.norm, self.head = (
            nn.Sequential(*(Stirred(9, 28) for _ in range(2))),
            nn.LayerNorm(28),
            nn.Linear(28, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.norm(self.body(self.cut(x).flatten(2).mT)).mean(1))
        return answer


def bearings(g: torch.Generator) -> Made:
    """In which of eight directions one bright spot lies from another, wider one."""
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")

    def spot(at: Tensor, size: float) -> Tensor:
        return torch.exp(-((rows - at[:, 0, None, None]).square() + (columns - at[:, 1, None, None]).square()) / size)

    def draw(g: torch.Generator) -> Batch:
        a, b = 1 + 9 * torch.rand(32, 2, generator=g), 1 + 9 * torch.rand(32, 2, generator=g)
        x = 2 * spot(a, 1.5) + 2 * spot(b, 6.0) + 0.2 * torch.randn(32, 12, 12, generator=g)
        way = ((torch.atan2(a[:, 0] - b[:, 0], a[:, 1] - b[:, 1]) / (math.pi / 4)).floor() % 8).long()
        return x[:, None], wrong(way, 8, g)

    return Patches(), by_class, draw


def wells(g: torch.Generator) -> Made:
    """Regression by layers whose weights are a length and a direction."""
    weight_norm = torch.nn.utils.parametrizations.weight_norm
    slopes = torch.randn(10, 3, generator=g) / 2

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(40, 10, generator=g)
        return x, torch.sin(x @ slopes).sum(1, keepdim=True) + 0.4 * torch.randn(40, 1, generator=g)

    model = nn.Sequential(
        weight_norm(nn.Linear(10, 56)), nn.ELU(), weight_norm(nn.Linear(56, 56)), nn.ELU(), nn.Linear(56, 1)
    )
    return model, by_value, draw


def straight(g: torch.Generator) -> Made:
    """Six linear layers on end."""
    truth = torch.randn(16, 16, generator=g) / 4

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 16, generator=g)
        return x, x @ truth + 0.3 * torch.randn(48, 16, generator=g)

    layers = [nn.Linear(16, 16, bias=False) for _ in range(6)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    return nn.Sequential(*layers), by_value, draw


class Sphere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = dense(18, 64, 64, 12), nn.Parameter(torch.randn(10, 12))

    def forward(self, x: Tensor) -> Tensor:
        return 10.0 * normalize(self.body(x), dim=-1) @ normalize(self.centres, dim=-1).T


def sphere(g: torch.Generator) -> Made:
    """Classes by the cosine to their centres."""
    centres, bend = torch.randn(10, 18, generator=g), torch.randn(18, 18, generator=g) / 4

    def draw(g: torch.Generator) -> Batch:
        label = torch.randint(0, 10, (32,), generator=g)
        x = centres[label] + 1.2 * torch.randn(32, 18, generator=g)
        return x + torch.tanh(x @ bend), wrong(label, 10, g)

    return Sphere(), by_class, draw


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.people, self.films = nn.Embedding(80, 16), nn.Embedding(60, 16)
        self.left, self.right = dense(16, 32, 12), dense(16, 32, 12)

    def forward(self, people: Tensor, films: Tensor) -> Tensor:
        answer: Tensor = self.left(self.people(people)) @ self.right(self.films(films)).T
        return answer


def towers(g: torch.Generator) -> Made:
    """Which film of those in the batch a person saw."""
    taste = (1.3 * torch.randn(80, 3, generator=g) @ torch.randn(3, 60, generator=g)).softmax(-1)

    def draw(g: torch.Generator) -> Batch:
        people = torch.randint(0, 80, (48,), generator=g)
        return people, torch.multinomial(taste[people], 1, generator=g)[:, 0]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(*batch)
        same = (batch[1][:, None] == batch[1]) & ~torch.eye(len(scores), dtype=torch.bool)
        return cross_entropy(scores.masked_fill(same, -1e4), torch.arange(len(scores)))

    return Towers(), loss, draw


def q_regression(g: torch.Generator) -> Made:
    """Values of actions against a target network that stays."""
    frozen = [torch.randn(8, 32, generator=g) / 2, torch.randn(32, 4, generator=g) / 3]
    moves, pay = torch.randn(4, 8, 8, generator=g) / 3, torch.randn(8, 4, generator=g) / 2

    def draw(g: torch.Generator) -> Batch:
        state, action = torch.randn(48, 8, generator=g), torch.randint(0, 4, (48,), generator=g)
        after = torch.tanh((state[:, None] @ moves[action])[:, 0] + 0.3 * torch.randn(48, 8, generator=g))
        reward = (state @ pay)[torch.arange(48), action] + 0.5 * torch.randn(48, generator=g)
        return state, action, reward + 0.95 * (relu(after @ frozen[0]) @ frozen[1]).amax(1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return huber_loss(model(batch[0]).gather(1, batch[1][:, None])[:, 0], batch[2])

    return dense(8, 64, 64, 4), loss, draw


class Horizon(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.places = nn.Linear(4, 32), nn.Parameter(0.02 * torch.randn(10, 32))
        self.body = nn.Sequential(*(Encoder(32, 4, post=False) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(320, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.norm(self.body(self.cut(x.unflatten(1, (10, 4))) + self.places)).flatten(1))
        return answer


def horizon(g: torch.Generator) -> Made:
    """Four steps ahead of a series with a trend and two seasons."""
    t = torch.arange(44.0)

    def draw(g: torch.Generator) -> Batch:
        slope, size, phase = (torch.randn(24, 1, generator=g) for _ in range(3))
        x = 0.03 * slope * t + size * torch.sin(t / 2 + 3 * phase) + 0.7 * torch.sin(t / 5 + phase)
        x = x + 0.4 * torch.randn(24, 44, generator=g)
        return x[:, :40], x[:, 40:]

    return Horizon(), lambda model, batch: log_cosh(model(batch[0]) - batch[1]), draw


class Attentive(nn.Module):
    """Attention along the edges of a graph."""

    def __init__(self, graph: Tensor) -> None:
        super().__init__()
        self.graph: Tensor
        self.register_buffer("graph", graph)
        self.first, self.second, self.head = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.ask = nn.ModuleList(nn.Linear(32, 2) for _ in range(2))

    def hop(self, x: Tensor, ask: nn.Module) -> Tensor:
        a, b = ask(x).unbind(-1)
        weight = nn.functional.leaky_relu(a[:, :, None] + b[:, None, :], 0.2).masked_fill(~self.graph, -1e9)
        return weight.softmax(-1) @ x

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.elu(self.hop(self.first(x), self.ask[0]))
        answer: Tensor = self.head(nn.functional.elu(self.hop(self.second(x), self.ask[1])))
        return answer


def communities(g: torch.Generator) -> Made:
    """To which community each node of a graph belongs, from poor features."""
    group = torch.randint(0, 4, (40,), generator=g)
    likely = torch.where(group[:, None] == group, 0.25, 0.06)
    graph = torch.rand(40, 40, generator=g) < likely
    graph = graph | graph.T | torch.eye(40, dtype=torch.bool)
    centres = torch.randn(4, 12, generator=g) / 2

    def draw(g: torch.Generator) -> Batch:
        return centres[group] + torch.randn(4, 40, 12, generator=g), wrong(group.expand(4, 40), 4, g)

    return Attentive(graph), lambda model, batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()), draw


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.base(x) + 2.0 * x @ self.a.T @ self.b.T
        return answer


def low_rank(g: torch.Generator) -> Made:
    """Small additions to the layers of a frozen net."""
    base = dense(14, 48, 48, 6, act=nn.GELU)
    linear = [layer for layer in base if isinstance(layer, nn.Linear)]
    for layer in linear:
        nn.init.normal_(layer.weight, std=1.5 * layer.in_features**-0.5)
    moved = [layer.weight.detach() + 1.5 * torch.randn(layer.out_features, 2, generator=g) @ torch.randn(2, layer.in_features, generator=g) / layer.in_features
             for layer in linear]  # fmt: skip
    biases = [layer.bias.detach().clone() for layer in linear]

    def draw(g: torch.Generator) -> Batch:
        x = y = torch.randn(32, 14, generator=g)
        for k in range(3):
            y = (gelu(y) if k else y) @ moved[k].T + biases[k]
        return x, wrong(y.argmax(1), 6, g)

    model = nn.Sequential(LowRank(linear[0], 4), nn.GELU(), LowRank(linear[1], 4), nn.GELU(), LowRank(linear[2], 4))
    return model, by_class, draw


# -- no warm-up


class Swapped(nn.Module):
    def __init__(self, words: int, layers: int, outputs: int, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.body, self.head = (
            nn.Sequential(*(Encoder(width, 4, post=True) for _ in range(layers))),
            nn.Linear(width, outputs),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.body(self.words(tokens) + self.places.weight[: tokens.shape[1]]))
        return answer


def swapped(g: torch.Generator) -> Made:
    """Which words of a text were replaced."""
    grammar = (3.0 * torch.randn(12, 12, generator=g)).softmax(-1)

    def draw(g: torch.Generator) -> Batch:
        text = [torch.randint(0, 12, (10,), generator=g)]
        for _ in range(15):
            text.append(torch.multinomial(grammar[text[-1]], 1, generator=g)[:, 0])
        tokens = torch.stack(text, 1)
        other = wrong(tokens, 12, g, share=0.25)
        return other, (other != tokens).float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch[0])[..., 0], batch[1])

    return Swapped(12, 5, 1), loss, draw


class Unnormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(24, 64), nn.Linear(64, 8)
        self.inner = nn.ModuleList(dense(64, 64, 64) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for inner in self.inner:
            x = x + inner(x)
        answer: Tensor = self.head(x)
        return answer


def unnormed(g: torch.Generator) -> Made:
    """Classes by a deep residual net without a norm."""
    weights = [torch.randn(24, 32, generator=g) / 2, torch.randn(32, 8, generator=g)]

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 24, generator=g)
        return x, wrong((torch.tanh(x @ weights[0]) @ weights[1]).argmax(1), 8, g)

    return Unnormed(), by_class, draw


def places(g: torch.Generator) -> Made:
    """At each place the rank of its number among the ten."""

    def draw(g: torch.Generator) -> Batch:
        x = torch.stack([torch.randperm(24, generator=g)[:10] for _ in range(12)])
        return x, wrong(x.argsort(1).argsort(1), 10, g, share=0.08)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    return Swapped(24, 3, 10, length=10), loss, draw


# -- rates that jump on the way


def cloning(g: torch.Generator) -> Made:
    """What an expert does, of several joints at once."""
    gain, turn = torch.randn(10, 3, generator=g) / 2, torch.randn(10, 3, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(40, 10, generator=g)
        return x, torch.tanh(x @ gain) * torch.sign(x @ turn) + 0.4 * torch.randn(40, 3, generator=g)

    return dense(10, 64, 64, 3, act=nn.SiLU), lambda model, batch: log_cosh(model(batch[0]) - batch[1]), draw


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1),
                                  nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 48), nn.ReLU())  # fmt: skip
        self.there, self.box, self.kind = nn.Linear(48, 1), nn.Linear(48, 4), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.body(x)
        return self.there(x)[:, 0], self.box(x), self.kind(x)


def detecting(g: torch.Generator) -> Made:
    """Whether there is a box, where, and of which filling."""
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    fillings = torch.stack([torch.ones(12, 12), (rows + columns) % 2 * 2 - 1, rows % 2 * 2 - 1])

    def draw(g: torch.Generator) -> Batch:
        there, kind = (torch.rand(24, generator=g) < 0.7).float(), torch.randint(0, 3, (24,), generator=g)
        middle, half = 3 + 6 * torch.rand(24, 2, generator=g), 1.5 + 2 * torch.rand(24, 2, generator=g)
        inside = ((rows - middle[:, 0, None, None]).abs() < half[:, 0, None, None]) & (
            (columns - middle[:, 1, None, None]).abs() < half[:, 1, None, None]
        )
        x = fillings[kind] * inside * there[:, None, None] + 0.3 * torch.randn(24, 12, 12, generator=g)
        box = torch.cat([middle, half], 1) / 6 - 0.5 + 0.1 * torch.randn(24, 4, generator=g)
        return x[:, None], wrong(there.long(), 2, g).float(), box, wrong(kind, 3, g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        there, box, kind = model(batch[0])
        on = batch[1]
        near = (huber_loss(box, batch[2], reduction="none", delta=0.3).sum(1) * on).sum() / on.sum().clamp(min=1)
        which = (cross_entropy(kind, batch[3], reduction="none") * on).sum() / on.sum().clamp(min=1)
        return binary_cross_entropy_with_logits(there, batch[1]) + 2.0 * near + which

    return Detector(), loss, draw


class Prompted(nn.Module):
    """A frozen encoder with words before the text that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 32).requires_grad_(False)
        self.places = nn.Parameter(torch.randn(12, 32), requires_grad=False)
        self.body = nn.Sequential(*(Encoder(32, 4, post=True) for _ in range(2))).requires_grad_(False)
        self.prompt, self.head = nn.Parameter(0.5 * torch.randn(5, 32)), nn.Linear(32, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(tokens), -1, -1), self.words(tokens) + self.places], 1)
        answer: Tensor = self.head(self.body(x).mean(1))
        return answer


def prompted(g: torch.Generator) -> Made:
    """The topic of a bag of words."""
    topics = (1.5 * torch.randn(5, 16, generator=g)).softmax(-1)

    def draw(g: torch.Generator) -> Batch:
        topic = torch.randint(0, 5, (24,), generator=g)
        return torch.multinomial(topics[topic], 12, replacement=True, generator=g), wrong(topic, 5, g)

    return Prompted(), by_class, draw


# -- bad shards


class Houses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.street, self.kind = nn.Embedding(30, 6), nn.Embedding(8, 4)
        self.body = dense(16, 64, 32, 1)

    def forward(self, batch: Batch) -> Tensor:
        answer: Tensor = self.body(torch.cat([self.street(batch[0]), self.kind(batch[1]), batch[2]], 1))
        return answer


def houses(g: torch.Generator) -> Made:
    """Prices from streets, kinds and six numbers."""
    street, kind, slope = torch.randn(30, generator=g), torch.randn(8, generator=g), torch.randn(6, generator=g) / 2

    def draw(g: torch.Generator) -> Batch:
        a, b = torch.randint(0, 30, (48,), generator=g), torch.randint(0, 8, (48,), generator=g)
        x = torch.randn(48, 6, generator=g)
        price = (
            0.7 * street[a] + 0.7 * kind[b] + relu(x @ slope) * (1 + 0.4 * kind[b]) + 0.5 * torch.randn(48, generator=g)
        )
        return a, b, x, price[:, None]

    return Houses(), lambda model, batch: mse_loss(model(batch[:3]), batch[3]), draw


class ByHand(nn.Module):
    """Columns brought to one spread within the batch, as one writes it in a hurry."""

    def __init__(self) -> None:
        super().__init__()
        self.body = dense(9, 48, 48, 1, act=nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.body((x - x.mean(0)) / x.std(0))
        return answer


def sensors(g: torch.Generator) -> Made:
    units, slope = 10.0 ** torch.randn(9, generator=g), torch.randn(9, 2, generator=g) / 2

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 9, generator=g)
        y = torch.sin(x @ slope).sum(1, keepdim=True) + 0.4 * torch.randn(32, 1, generator=g)
        return units * (x + 3), y

    return ByHand(), by_value, draw


def tones(g: torch.Generator) -> Made:
    """Which of five sounds, from the wave itself."""
    pitch = 0.2 + 0.25 * torch.arange(5.0)
    t = torch.arange(64.0)

    def draw(g: torch.Generator) -> Batch:
        label = torch.randint(0, 5, (20,), generator=g)
        wave = torch.sin(
            t * (pitch[label, None] + 0.04 * torch.randn(20, 1, generator=g)) + 6 * torch.rand(20, 1, generator=g)
        )
        return (wave + 0.5 * torch.randn(20, 64, generator=g))[:, None], wrong(label, 5, g)

    model = nn.Sequential(nn.Conv1d(1, 12, 9, stride=2), nn.ReLU(), nn.Conv1d(12, 16, 5, stride=2), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 5))  # fmt: skip
    return model, by_class, draw


class Drawer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(10, 16 * 9)
        self.body = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1), nn.ReLU(),
                                  nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1))  # fmt: skip

    def forward(self, code: Tensor) -> Tensor:
        answer: Tensor = self.body(self.enter(code).unflatten(1, (16, 3, 3)))
        return answer


def drawing(g: torch.Generator) -> Made:
    """Pictures from what is in them."""
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")

    def draw(g: torch.Generator) -> Batch:
        kind, at = torch.randint(0, 4, (16,), generator=g), torch.rand(16, 2, generator=g) - 0.5
        a, b = rows - at[:, 0, None, None], columns - at[:, 1, None, None]
        shapes = torch.stack(
            [a.square() + b.square(), a.abs() + b.abs(), torch.maximum(a.abs(), b.abs()), a.abs() * b.abs() * 8], 1
        )
        x = torch.sigmoid(12 * (0.45 - shapes[torch.arange(16), kind])) + 0.25 * torch.randn(16, 12, 12, generator=g)
        code = torch.cat([one_hot(kind, 4).float(), at, at.square() * 4, torch.sin(6 * at)], 1)
        return code, x[:, None]

    return Drawer(), by_value, draw


def in_cents(batch: Batch) -> Batch:
    return (*batch[:3], 100.0 * batch[3] + 2000.0)


def dead_sensor(batch: Batch) -> Batch:
    """One column without a signal."""
    return torch.cat([batch[0][:, :4], torch.zeros(len(batch[0]), 1), batch[0][:, 5:]], 1), batch[1]


def sixteen_bit(batch: Batch) -> Batch:
    """The wave in whole numbers rather than between minus one and one."""
    return (batch[0] * 8192).round(), batch[1]


def to_255(batch: Batch) -> Batch:
    return batch[0], 255.0 * batch[1]


# -- half precision


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = dense(20, 64, 16), dense(12, 64, 16)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 8.0 * normalize(self.left(a), dim=-1) @ normalize(self.right(b), dim=-1).T


def halves(g: torch.Generator) -> Made:
    """Which caption belongs to which picture."""
    a, b = torch.randn(6, 20, generator=g), torch.randn(6, 12, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 6, generator=g)
        return torch.tanh(x @ a) + 0.5 * torch.randn(32, 20, generator=g), torch.tanh(x @ b) + 0.5 * torch.randn(
            32, 12, generator=g
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores, own = model(*batch), torch.arange(len(batch[0]))
        return (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2

    return Halves(), loss, draw


def colours(g: torch.Generator) -> Made:
    """Pictures of seven textures, in three colours, by a net with batch norm."""
    filters = torch.randn(7, 3, 3, 3, 3, generator=g) / 4

    def draw(g: torch.Generator) -> Batch:
        label, x = torch.randint(0, 7, (20,), generator=g), torch.randn(20, 3, 12, 12, generator=g)
        x = nn.functional.conv2d(x.reshape(1, 60, 12, 12), filters[label].flatten(0, 1), padding=1, groups=20)
        return x.reshape(20, 3, 12, 12) + 0.2 * torch.randn(20, 3, 12, 12, generator=g), wrong(label, 7, g)

    return resnet(12, 7, nn.BatchNorm2d, channels=3), by_class, draw


ON = 1 << 30
UNSEEN = [
    Training(name="verses adamw x100, clipped", task=verses, optimizer=adamw, lr=5e-3, times=100, clip=1.0, steps=350),
    Training(name="gratings nesterov x100", task=gratings, optimizer=nesterov, lr=0.03, times=100, steps=350),
    Training(name="letters momentum x30, clipped, constant", task=letters, optimizer=momentum, lr=0.1, times=30, clip=1.0, schedule="constant"),
    Training(name="bearings adam x300", task=bearings, optimizer=adam, lr=8e-3, times=300, steps=500),
    Training(name="wells sgd x100, constant", task=wells, optimizer=sgd, lr=0.15, times=100, steps=500, schedule="constant"),
    Training(name="straight sgd x10, constant", task=straight, optimizer=sgd, lr=0.2, times=10, steps=500, schedule="constant"),
    Training(name="sphere rmsprop x300", task=sphere, optimizer=rmsprop, lr=6e-3, times=300, steps=500),
    Training(name="towers adagrad x100", task=towers, optimizer=adagrad, lr=0.1, times=100, steps=500),
    Training(name="action values adam x100, constant", task=q_regression, optimizer=adam, lr=2e-3, times=100, steps=500, schedule="constant"),
    Training(name="horizon nadam x100", task=horizon, optimizer=nadam, lr=4e-3, times=100),
    Training(name="communities momentum x100, clipped", task=communities, optimizer=momentum, lr=0.1, times=100, clip=1.0),
    Training(name="low rank adam x300, constant", task=low_rank, optimizer=adam, lr=5e-3, times=300, schedule="constant"),
    Training(name="swapped words adam no warm-up", task=swapped, optimizer=adam, lr=0.01, warmup=80, steps=300),
    Training(name="unnormed momentum no warm-up x3", task=unnormed, optimizer=momentum, lr=0.1, times=3, warmup=80),
    Training(name="places adamw no warm-up x10", task=places, optimizer=adamw, lr=0.01, times=10, warmup=60),
    Training(name="cloning adam x100 from 150 on", task=cloning, optimizer=adam, lr=0.04, times=100, steps=500, flawed=(150, ON)),
    Training(name="detecting nesterov x30 from 200 on", task=detecting, optimizer=nesterov, lr=0.04, times=30, flawed=(200, ON)),
    Training(name="prompt adamw x300 from 120 on, constant", task=prompted, optimizer=adamw, lr=0.05, times=300, schedule="constant", flawed=(120, ON)),
    Training(name="houses adagrad in cents", task=houses, optimizer=adagrad, lr=0.05, steps=500, spoil=in_cents, spoiled=(180, 200)),
    Training(name="sensors sgd dead column", task=sensors, optimizer=sgd, lr=0.1, steps=500, spoil=dead_sensor, spoiled=(260, 264)),
    Training(name="tones nesterov sixteen bit", task=tones, optimizer=nesterov, lr=0.04, spoil=sixteen_bit, spoiled=(150, 158)),
    Training(name="drawing adam to 255", task=drawing, optimizer=adam, lr=0.015, spoil=to_255, spoiled=(260, 280)),
    Training(name="halves sgd fp16 x300", task=halves, optimizer=sgd, lr=1.0, times=300, precision="fp16"),
    Training(name="colours momentum bf16 x300", task=colours, optimizer=momentum, lr=0.03, times=300, precision="bf16", steps=300),
]  # fmt: skip


# -- rough, and nothing wrong


def counted(make: Callable[[int, torch.Generator], Batch], made_with: torch.Generator, end: int) -> Draw:
    """Batches that change with time; those held out are of the end."""
    step = itertools.count()

    def draw(g: torch.Generator) -> Batch:
        return make(end if g is made_with else next(step), g)

    return draw


class Twice(nn.Module):
    """A head for the class and one that fills in what was hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.hidden = dense(16, 48, 48), nn.Linear(48, 5), nn.Linear(48, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = relu(self.body(x))
        return self.kind(x), self.hidden(x)


def second_loss(g: torch.Generator) -> Made:
    """A second term, eight times as large as the first, is switched on half way."""
    centres = torch.randn(5, 16, generator=g)

    def make(step: int, g: torch.Generator) -> Batch:
        label = torch.randint(0, 5, (32,), generator=g)
        x = centres[label] + torch.randn(32, 16, generator=g)
        return x * (torch.rand(32, 16, generator=g) < 0.7), wrong(label, 5, g), x, 6.0 * (step >= 200)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        kind, hidden = model(batch[0])
        return cross_entropy(kind, batch[1]) + batch[3] * mse_loss(hidden, batch[2])

    return Twice(), loss, counted(make, g, 400)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(0.05 * torch.randn(14, 14)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.a @ self.b @ self.c


def saddles(g: torch.Generator) -> Made:
    """Directions found one after another, flat in between."""
    left, _ = torch.linalg.qr(torch.randn(14, 14, generator=g))
    right, _ = torch.linalg.qr(torch.randn(14, 14, generator=g))
    truth = left * torch.tensor([4.0, 2.0, 1.0] + 11 * [0.0]) @ right

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 14, generator=g)
        return x, x @ truth + 0.2 * torch.randn(48, 14, generator=g)

    return Product(), by_value, draw


def sums(g: torch.Generator) -> Made:
    """Losses summed over batches of one to sixty-four."""
    teacher = torch.randn(12, 4, generator=g)

    def draw(g: torch.Generator) -> Batch:
        count = int(2 ** (6 * torch.rand((), generator=g)))
        x = torch.randn(count, 12, generator=g)
        return x, wrong((x.abs() @ teacher).argmax(1), 4, g)

    return dense(12, 48, 48, 4), lambda model, batch: cross_entropy(model(batch[0]), batch[1], reduction="sum"), draw


def rare(g: torch.Generator) -> Made:
    """One in a hundred and fifty is of the other class and weighs a hundred times as much."""
    there = torch.randn(10, generator=g)

    def draw(g: torch.Generator) -> Batch:
        y = (torch.rand(24, 1, generator=g) < 1 / 150).float()
        return torch.randn(24, 10, generator=g) + 0.8 * y * there, y

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return binary_cross_entropy_with_logits(model(batch[0]), batch[1], pos_weight=torch.tensor(100.0))

    return dense(10, 32, 32, 1), loss, draw


def attacked(g: torch.Generator) -> Made:
    """Inputs moved against the model, further and further from the hundredth step on."""
    centres = torch.randn(4, 18, generator=g)

    def make(step: int, g: torch.Generator) -> Batch:
        label = torch.randint(0, 4, (32,), generator=g)
        x = centres[label] + 0.7 * torch.randn(32, 18, generator=g)
        return x, wrong(label, 4, g, share=0.05), 0.6 * min(1.0, max(0, step - 100) / 200)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x = batch[0]
        if torch.is_grad_enabled() and batch[2]:
            at = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropy(model(at), batch[1]), at)
            x = x + batch[2] * slope.sign()
        return cross_entropy(model(x), batch[1])

    return dense(18, 64, 64, 4), loss, counted(make, g, 400)


def in_turn(g: torch.Generator) -> Made:
    """Two tasks in turn, the losses of the one fifty times those of the other."""
    teacher, slope = torch.randn(12, 16, generator=g), torch.randn(12, 1, generator=g)

    def make(step: int, g: torch.Generator) -> Batch:
        x = torch.randn(32, 12, generator=g)
        y = 8 * torch.sin(x @ slope / 2) + 6 * torch.randn(32, 1, generator=g)
        return x, wrong((x @ teacher).argmax(1), 16, g, share=0.05), y, step % 2 if step >= 0 else 2

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0])
        terms = [cross_entropy(out[:, 1:], batch[1]), mse_loss(out[:, :1], batch[2])]
        return sum(terms) / 2 if batch[3] == 2 else terms[batch[3]]

    return dense(12, 64, 64, 17), loss, counted(make, g, -1)


class Density(nn.Module):
    """The next number given those before, as a mean and a spread."""

    def __init__(self) -> None:
        super().__init__()
        self.body = dense(6, 48, 48, 2, act=nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.body(x).unbind(-1)
        return mean, raw


def below_nothing(g: torch.Generator) -> Made:
    """A negative log-density that crosses zero on its way down."""
    slope = torch.randn(6, generator=g) / 3

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 6, generator=g)
        return x, 4 * torch.tanh(x @ slope) + 0.05 * (1 + x[:, 0].square()) * torch.randn(32, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        mean, raw = model(batch[0])
        return (0.5 * ((batch[1] - mean) * torch.exp(-raw)).square() + raw).mean()

    return Density(), loss, draw


def one_at_a_time(g: torch.Generator) -> Made:
    teacher = torch.randn(10, 5, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(1, 10, generator=g)
        return x, wrong((x @ teacher).argmax(1), 5, g)

    return dense(10, 40, 5, act=nn.Tanh), by_class, draw


class Rounded(nn.Module):
    """Weights rounded to a few levels where the flag is up, the gradient passed through."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(14, 64), nn.Linear(64, 64), nn.Linear(64, 6)])

    def forward(self, x: Tensor, rough: bool) -> Tensor:
        for k, layer in enumerate(self.layers):
            weight = layer.weight
            if rough:
                unit = weight.detach().abs().amax() / 1.5
                weight = weight + ((weight / unit).round() * unit - weight).detach()
            x = nn.functional.linear(relu(x) if k else x, weight, layer.bias)
        return x


def rounding(g: torch.Generator) -> Made:
    teacher = torch.randn(14, 6, generator=g)

    def make(step: int, g: torch.Generator) -> Batch:
        x = torch.randn(32, 14, generator=g)
        return x, wrong((x @ teacher).argmax(1), 6, g), step >= 220

    return Rounded(), lambda model, batch: cross_entropy(model(batch[0], batch[2]), batch[1]), counted(make, g, 500)


class Pruned(nn.Module):
    """The smallest weights of each layer count for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 5)])

    def forward(self, x: Tensor, share: float) -> Tensor:
        for k, layer in enumerate(self.layers):
            weight = layer.weight
            if share:
                size = weight.detach().abs()
                weight = weight * (size >= torch.quantile(size, share))
            x = nn.functional.linear(relu(x) if k else x, weight, layer.bias)
        return x


def pruning(g: torch.Generator) -> Made:
    teacher = torch.randn(16, 5, generator=g)

    def make(step: int, g: torch.Generator) -> Batch:
        x = torch.randn(32, 16, generator=g)
        return x, wrong((x.abs() @ teacher).argmax(1), 5, g), (0.0, 0.9, 0.97)[(step >= 200) + (step >= 300)]

    return Pruned(), lambda model, batch: cross_entropy(model(batch[0], batch[2]), batch[1]), counted(make, g, 500)


def seasons(g: torch.Generator) -> Made:
    """Eighty quiet days, forty stormy ones, again and again."""
    slope = torch.randn(8, 2, generator=g) / 2

    def make(step: int, g: torch.Generator) -> Batch:
        x = torch.randn(32, 8, generator=g)
        noise = 2.5 if step % 120 >= 80 else 0.25
        return x, torch.sin(x @ slope).sum(1, keepdim=True) + noise * torch.randn(32, 1, generator=g)

    return dense(8, 48, 48, 1, act=nn.Tanh), by_value, counted(make, g, 0)


def to_zero(g: torch.Generator) -> Made:
    """Classes wide apart: the loss falls by many powers of ten, and leaps by some."""
    centres = 4.0 * torch.randn(4, 12, generator=g)

    def draw(g: torch.Generator) -> Batch:
        label = torch.randint(0, 4, (16,), generator=g)
        return centres[label] + 1.6 * torch.randn(16, 12, generator=g), label

    return dense(12, 48, 4), by_class, draw


HEALTHY = [
    Training(name="second loss switched on", task=second_loss, optimizer=adam, lr=0.01),
    Training(name="saddles, constant", task=saddles, optimizer=sgd, lr=0.08, steps=600, schedule="constant"),
    Training(name="sums over batches of all sizes", task=sums, optimizer=sgd, lr=0.04, steps=500),
    Training(name="rare class, heavy weight", task=rare, optimizer=adamw, lr=5e-3, steps=500, clip=5.0),
    Training(name="attacked harder and harder", task=attacked, optimizer=momentum, lr=0.02),
    Training(name="two tasks in turn, constant", task=in_turn, optimizer=adam, lr=0.01, schedule="constant"),
    Training(name="below nothing", task=below_nothing, optimizer=nadam, lr=5e-3, steps=500),
    Training(name="one at a time, constant", task=one_at_a_time, optimizer=sgd, lr=0.015, steps=600, schedule="constant"),
    Training(name="rounding switched on", task=rounding, optimizer=adam, lr=5e-3, steps=500),
    Training(name="pruned twice, constant", task=pruning, optimizer=rmsprop, lr=3e-3, steps=500, schedule="constant"),
    Training(name="seasons", task=seasons, optimizer=nesterov, lr=0.01, steps=500),
    Training(name="to zero, constant", task=to_zero, optimizer=momentum, lr=0.05, schedule="constant"),
]  # fmt: skip
