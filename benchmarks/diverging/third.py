"""A third set: twenty-four more trainings that diverge, and twelve rough ones that do not."""
# ruff: noqa: E501

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    ctc_loss,
    dropout,
    elu,
    kl_div,
    logsigmoid,
    mse_loss,
    normalize,
    one_hot,
    relu,
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


# -- optimizers the first file has not


def adagrad(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=lr)


def radam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.RAdam(parameters, lr=lr)


def adam_language(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


def sgd_decay(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.03)


# -- pieces


def stack(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Linear(a, b)] if i == len(widths) - 2 else [nn.Linear(a, b), act()]
    return nn.Sequential(*layers)


def mistaken(labels: Tensor, classes: int, g: torch.Generator, share: float = 0.15) -> Tensor:
    wrong = torch.rand(labels.shape, generator=g) < share
    return torch.where(wrong, torch.randint(0, classes, labels.shape, generator=g), labels)


class Clock:
    """How far the training is, from the batches drawn; the held-out ones, drawn first, count as the end."""

    def __init__(self, steps: int, held_out: int = 24) -> None:
        self.steps, self.held_out, self.calls = steps, held_out, 0

    def __call__(self) -> float:
        self.calls += 1
        return 1.0 if self.calls <= self.held_out else min(1.0, (self.calls - self.held_out) / self.steps)


# -- tasks of the trainings that diverge


def distillation(g: torch.Generator) -> Made:
    """A small net after a large one, whose answers come with noise, and after labels."""
    big = stack(12, 96, 96, 8, act=nn.Tanh).requires_grad_(False)
    for layer in big:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=2.0 / math.sqrt(layer.in_features), generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(40, 12, generator=g)
        logits = 2 * big(x)
        return x, logits + 1.0 * torch.randn(logits.shape, generator=g), mistaken(logits.argmax(-1), 8, g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = model(batch[0])
        soft = kl_div((out / 2).log_softmax(-1), (batch[1] / 2).log_softmax(-1), reduction="batchmean", log_target=True)
        return 0.7 * 4 * soft + 0.3 * cross_entropy(out, batch[2])

    return stack(12, 40, 40, 8), loss, draw


class Listener(nn.Module):
    def __init__(self, bands: int, letters: int) -> None:
        super().__init__()
        self.front, self.cell = nn.Conv1d(bands, 24, 3, padding=1), nn.GRU(24, 20, batch_first=True, bidirectional=True)
        self.head = nn.Linear(40, letters + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(relu(self.front(x.mT)).mT)[0]).log_softmax(-1)


def speech(g: torch.Generator) -> Made:
    """Five letters spoken at varying speed within twenty frames."""
    sounds = torch.randn(7, 10, generator=g)
    sounds[0] = 0

    def draw(g: torch.Generator) -> Batch:
        said = torch.randint(1, 7, (12, 5), generator=g)
        slow = torch.randint(2, 5, (12, 5), generator=g).cumsum(1)
        which = (torch.arange(20)[None, :, None] >= slow[:, None]).sum(-1)
        frames = torch.cat([said, torch.zeros(12, 1, dtype=torch.long)], 1).gather(1, which)
        x = sounds[frames] + 0.5 * torch.randn(12, 20, 10, generator=g)
        wrong = torch.rand(said.shape, generator=g) < 0.1
        return x, torch.where(wrong, torch.randint(1, 7, said.shape, generator=g), said)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return ctc_loss(model(batch[0]).transpose(0, 1), batch[1], torch.full((12,), 20), torch.full((12,), 5))

    return Listener(10, 6), loss, draw


class Finder(nn.Module):
    def __init__(self, words: int, width: int = 24) -> None:
        super().__init__()
        self.words, self.question = nn.Embedding(words, width), nn.Embedding(2, width)
        self.cell, self.head = nn.LSTM(width, 24, batch_first=True, bidirectional=True), nn.Linear(48, 2)

    def forward(self, text: Tensor, question: Tensor) -> Tensor:
        return self.head(self.cell(self.words(text) + self.question(question)[:, None])[0])


def spans(g: torch.Generator) -> Made:
    """Two bracketed spans in a text; the question says which of them; where it begins and ends."""

    def draw(g: torch.Generator) -> Batch:
        text = torch.randint(4, 20, (24, 18), generator=g)
        first = torch.randint(0, 5, (24, 1), generator=g)
        ends = first + torch.randint(1, 4, (24, 1), generator=g)
        second = 9 + torch.randint(0, 5, (24, 1), generator=g)
        ends2 = second + torch.randint(1, 4, (24, 1), generator=g)
        swap = torch.randint(0, 2, (24, 1), generator=g)
        for at, sign in ((first, 0), (ends, 1), (second, 2), (ends2, 3)):
            text.scatter_(1, at, (sign + 2 * swap) % 4)
        question = torch.randint(0, 2, (24, 1), generator=g)
        near = question == swap
        begin, end = torch.where(near, first, second)[:, 0], torch.where(near, ends, ends2)[:, 0]
        return text, question[:, 0], mistaken(begin, 18, g), mistaken(end, 18, g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        begin, end = model(batch[0], batch[1]).unbind(-1)
        return 0.5 * (cross_entropy(begin, batch[2]) + cross_entropy(end, batch[3]))

    return Finder(20), loss, draw


def dice(g: torch.Generator) -> Made:
    """Bright bars among dim ones, by dilated convolutions under the loss of Dice."""

    def draw(g: torch.Generator) -> Batch:
        at = torch.arange(14)
        low = torch.randint(0, 8, (8, 2, 2), generator=g)
        high = low + torch.randint(3, 7, (8, 2, 2), generator=g)
        inside = (at >= low[..., None]) & (at < high[..., None])
        box = (inside[:, :, 0, :, None] & inside[:, :, 1, None, :]).float()
        x = (box[:, 0] + 0.4 * box[:, 1])[:, None] + 0.3 * torch.randn(8, 1, 14, 14, generator=g)
        return x, (box[:, :1] != (torch.rand(8, 1, 14, 14, generator=g) < 0.05)).float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        p, y = model(batch[0]).sigmoid(), batch[1]
        return 1 - ((2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)).mean()

    model = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.GroupNorm(2, 10), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=2, dilation=2),
                          nn.GroupNorm(2, 10), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=4, dilation=4), nn.ReLU(), nn.Conv2d(10, 1, 1))  # fmt: skip
    return model, loss, draw


def survival(g: torch.Generator) -> Made:
    """Times until an event, a third of them cut off, by the partial likelihood of Cox."""
    teacher = normalize(torch.randn(10, 2, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(64, 10, generator=g)
        a, b = (x @ teacher).unbind(-1)
        until = -torch.rand(64, generator=g).clamp_min(1e-6).log() * (-1.5 * a - torch.sin(2 * b)).exp()
        cut = -2 * torch.rand(64, generator=g).clamp_min(1e-6).log()
        return x, torch.minimum(until, cut), (until < cut).float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        order = batch[1].argsort(descending=True)
        risk, seen = model(batch[0])[:, 0][order], batch[2][order]
        return -((risk - risk.logcumsumexp(0)) * seen).sum() / seen.sum().clamp_min(1)

    return stack(10, 48, 48, 1, act=nn.SELU), loss, draw


class Ordered(nn.Module):
    def __init__(self, inputs: int, grades: int) -> None:
        super().__init__()
        self.score, self.steps = stack(inputs, 48, 48, 1), nn.Parameter(torch.linspace(1, -1, grades - 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x) + self.steps


def grades(g: torch.Generator) -> Made:
    """Five grades in order, each a threshold on one score."""
    teacher = normalize(torch.randn(14, 1, generator=g), dim=0)
    limits = torch.tensor([-1.0, -0.3, 0.3, 1.0])

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 14, generator=g)
        hidden = 1.5 * torch.tanh(2 * x @ teacher) + 0.4 * torch.randn(32, 1, generator=g)
        return x, (hidden > limits).float()

    return Ordered(14, 5), lambda m, b: binary_cross_entropy_with_logits(m(b[0]), b[1]), draw


class Tastes(nn.Module):
    def __init__(self, users: int, things: int, width: int = 8) -> None:
        super().__init__()
        self.users, self.things, self.liked = (
            nn.Embedding(users, width),
            nn.Embedding(things, width),
            nn.Embedding(things, 1),
        )
        for each in (self.users, self.things, self.liked):
            nn.init.normal_(each.weight, std=0.1)

    def forward(self, user: Tensor, thing: Tensor) -> Tensor:
        return (self.users(user) * self.things(thing)).sum(-1) + self.liked(thing)[..., 0]


def clicks(g: torch.Generator) -> Made:
    """What was clicked before what was not, for each user (BPR)."""
    users, things = torch.randn(50, 3, generator=g), torch.randn(80, 3, generator=g)

    def draw(g: torch.Generator) -> Batch:
        user = torch.randint(0, 50, (128,), generator=g)
        a, b = torch.randint(0, 80, (2, 128), generator=g)
        gap = (users[user] * (things[a] - things[b])).sum(-1) + 1.2 * torch.randn(128, generator=g)
        return user, torch.where(gap > 0, a, b), torch.where(gap > 0, b, a)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return softplus(model(batch[0], batch[2]) - model(batch[0], batch[1])).mean()

    return Tastes(50, 80), loss, draw


class Pairs(nn.Module):
    def __init__(self, words: int, width: int = 12) -> None:
        super().__init__()
        self.inner, self.outer = nn.Embedding(words, width), nn.Embedding(words, width)
        nn.init.uniform_(self.inner.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, word: Tensor, near: Tensor) -> Tensor:
        return torch.einsum("bd,bnd->bn", self.inner(word), self.outer(near))


def skip_gram(g: torch.Generator) -> Made:
    """Words and their neighbours out of six topics, five drawn words against each true one."""
    topics = (2.0 * torch.randn(6, 60, generator=g)).softmax(-1)

    def draw(g: torch.Generator) -> Batch:
        topic = torch.randint(0, 6, (96,), generator=g)
        both = torch.multinomial(topics[topic], 2, replacement=True, generator=g)
        return both[:, 0], torch.cat([both[:, 1:], torch.randint(0, 60, (96, 5), generator=g)], 1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(*batch)
        return -(logsigmoid(scores[:, 0]) + logsigmoid(-scores[:, 1:]).sum(-1)).mean()

    return Pairs(60), loss, draw


class Capsules(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.front, self.turn = nn.Conv2d(1, 24, 5, stride=2), nn.Parameter(0.3 * torch.randn(16 * 4, classes, 6, 6))

    @staticmethod
    def squash(v: Tensor) -> Tensor:
        size = v.square().sum(-1, keepdim=True)
        return v * size / (1 + size) / (size + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        parts = self.squash(self.front(x).view(len(x), 4, 6, 16).permute(0, 1, 3, 2).reshape(len(x), 64, 6))
        votes = torch.einsum("bni,ncij->bncj", parts, self.turn)
        agree = torch.zeros(votes.shape[:3])
        for _ in range(3):
            out = self.squash((agree.softmax(-1)[..., None] * votes).sum(1))
            agree = agree + (votes * out[:, None]).sum(-1)
        return (out.square().sum(-1) + 1e-8).sqrt()


def capsules(g: torch.Generator) -> Made:
    patterns = 0.6 * torch.randn(5, 1, 11, 11, generator=g)

    def draw(g: torch.Generator) -> Batch:
        label = torch.randint(0, 5, (16,), generator=g)
        return patterns[label] + torch.randn(16, 1, 11, 11, generator=g), mistaken(label, 5, g, 0.1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        length, y = model(batch[0]), one_hot(batch[1], 5).float()
        return (y * relu(0.9 - length).square() + 0.5 * (1 - y) * relu(length - 0.1).square()).sum(-1).mean()

    return Capsules(5), loss, draw


class Largest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = stack(5, 40, 40), stack(40, 40, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).amax(1))


def largest(g: torch.Generator) -> Made:
    """The best of a set."""
    teacher = normalize(torch.randn(5, 1, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 7, 5, generator=g)
        return x, (x.abs() @ teacher).amax(1) + 0.4 * torch.randn(32, 1, generator=g)

    return Largest(), lambda m, b: mse_loss(m(b[0]), b[1]), draw


class Euler(nn.Module):
    def __init__(self, steps: int = 10) -> None:
        super().__init__()
        self.steps, self.speed, self.head = steps, stack(7, 32, 6, act=nn.Tanh), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.cat([x, x.new_zeros(len(x), 4)], 1)
        for i in range(self.steps):
            z = z + 2.0 / self.steps * self.speed(torch.cat([z, x.new_full((len(x), 1), i / self.steps)], 1))
        return self.head(z)


def rings(g: torch.Generator) -> Made:
    """Three rings, by a differential equation in ten steps."""

    def draw(g: torch.Generator) -> Batch:
        label, angle = torch.randint(0, 3, (48,), generator=g), 2 * math.pi * torch.rand(48, generator=g)
        x = (0.5 + 0.8 * label)[:, None] * torch.stack([angle.cos(), angle.sin()], 1) + 0.15 * torch.randn(
            48, 2, generator=g
        )
        return x, mistaken(label, 3, g, 0.1)

    return Euler(), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


class Scaled(nn.Module):
    """Normalised by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.gain


class Swish(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = Scaled(width), Scaled(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (each.view(b, t, 4, c // 4).transpose(1, 2) for each in self.qkv(self.one(x)).chunk(3, -1))
        x = x + self.out(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        )
        gate, value = self.up(self.two(x)).chunk(2, -1)
        return x + self.down(silu(gate) * value)


class Llama(nn.Module):
    def __init__(self, words: int, length: int, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.body = nn.Sequential(*(Swish(width) for _ in range(layers)), Scaled(width))
        nn.init.normal_(self.words.weight, std=0.3)
        nn.init.normal_(self.places.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.words(x) + self.places.weight[: x.shape[1]]) @ self.words.weight.T


def periods(g: torch.Generator) -> Made:
    """Words that come again after three or four places, some mistyped; the words are shared between both ends."""

    def draw(g: torch.Generator) -> Batch:
        base, p = torch.randint(0, 10, (12, 4), generator=g), torch.randint(3, 5, (12, 1), generator=g)
        return (mistaken(base.gather(1, torch.arange(16)[None] % p), 10, g, 0.05),)

    return Llama(10, 16), lambda m, b: cross_entropy(m(b[0][:, :-1]).flatten(0, 1), b[0][:, 1:].flatten()), draw


class Tied(nn.Module):
    """The same layer twelve times."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        z = torch.zeros_like(x)
        for _ in range(12):
            z = torch.tanh(self.again(z) + x)
        return self.head(z)


def tied(g: torch.Generator) -> Made:
    a, b = torch.randn(12, 5, generator=g), torch.randn(12, 5, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(40, 12, generator=g)
        return x, mistaken((x @ a + 0.5 * (x @ b).square() / 3).argmax(-1), 5, g, 0.1)

    return Tied(12, 48, 5), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


class Linear(nn.Module):
    """Attention with a kernel in place of the softmax, without a norm after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.mlp = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            stack(width, 2 * width, width, act=nn.GELU),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k = elu(q) + 1, elu(k) + 1
        past = torch.tril(q @ k.mT)
        x = x + self.out(past @ v / (past.sum(-1, keepdim=True) + 1e-3))
        return x + self.mlp(self.norm2(x))


class Recall(nn.Module):
    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.before = nn.Embedding(words, width), nn.Embedding(words, width)
        self.body, self.head = nn.Sequential(Linear(width), Linear(width), nn.LayerNorm(width)), nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.words(x) + self.before(x.roll(1, 1)))[:, -1])


def recall(g: torch.Generator) -> Made:
    """Three keys with their values, then one of the keys."""

    def draw(g: torch.Generator) -> Batch:
        keys = torch.rand(48, 6, generator=g).argsort(-1)[:, :3]
        values = torch.randint(6, 12, (48, 3), generator=g)
        asked = torch.randint(0, 3, (48, 1), generator=g)
        line = torch.cat([torch.stack([keys, values], -1).flatten(1), keys.gather(1, asked)], 1)
        answer = values.gather(1, asked)[:, 0]
        return line, 6 + mistaken(answer - 6, 6, g, 0.1)

    return Recall(12), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def energies(g: torch.Generator) -> Made:
    """A low energy for what is seen, a higher one by a margin for what is drawn at random; both are kept small."""
    mix = torch.randn(3, 10, generator=g)

    def draw(g: torch.Generator) -> Batch:
        seen = torch.tanh(torch.randn(48, 3, generator=g) @ mix) + 0.2 * torch.randn(48, 10, generator=g)
        return seen, 0.8 * torch.randn(48, 10, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        low, high = model(batch[0]), model(batch[1])
        return relu(1 + low - high).mean() + 0.02 * (low.square() + high.square()).mean()

    return stack(10, 48, 48, 1, act=nn.SiLU), loss, draw


class Bumps(nn.Module):
    def __init__(self, inputs: int, bumps: int) -> None:
        super().__init__()
        self.centres, self.sharp = nn.Parameter(1.2 * torch.randn(bumps, inputs)), nn.Parameter(torch.zeros(bumps))
        self.head = nn.Linear(bumps, 1)

    def forward(self, x: Tensor) -> Tensor:
        far = (x[:, None] - self.centres).square().sum(-1)
        return self.head((-far * softplus(self.sharp)).exp())


def bumps(g: torch.Generator) -> Made:
    turn = torch.randn(3, 3, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 3, generator=g)
        return x, torch.sin(x @ turn).sum(-1, keepdim=True) + 0.4 * torch.randn(48, 1, generator=g)

    return Bumps(3, 64), lambda m, b: mse_loss(m(b[0]), b[1]), draw


class Columns(nn.Module):
    def __init__(self, kinds: int = 12, columns: int = 4, numbers: int = 6) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(kinds, 5) for _ in range(columns))
        self.norm = nn.BatchNorm1d(numbers)
        self.body = nn.Sequential(nn.Linear(5 * columns + numbers, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1),
                                  nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))  # fmt: skip

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        return self.body(torch.cat([each(kinds[:, i]) for i, each in enumerate(self.kinds)] + [self.norm(numbers)], 1))[
            :, 0
        ]


def table(g: torch.Generator) -> Made:
    """Four columns of kinds and six of numbers on different scales; a yes or no, some of them wrong."""
    worth, weight = torch.randn(4, 12, generator=g), torch.randn(6, generator=g)
    scale = torch.tensor([1.0, 10.0, 0.1, 100.0, 1.0, 3.0])

    def draw(g: torch.Generator) -> Batch:
        kinds, numbers = torch.randint(0, 12, (48, 4), generator=g), torch.randn(48, 6, generator=g)
        score = worth[torch.arange(4), kinds].sum(-1) + torch.tanh(numbers) @ weight
        return kinds, numbers * scale + scale, mistaken((score > 0).long(), 2, g, 0.2).float()

    return Columns(), lambda m, b: binary_cross_entropy_with_logits(m(b[0], b[1]), b[2]), draw


class Chain(nn.Module):
    """The score of a line of tags: each word's and each step's; the loss is what the sum over all lines is above it."""

    def __init__(self, words: int, tags: int, width: int = 20) -> None:
        super().__init__()
        self.words, self.front = nn.Embedding(words, width), nn.Conv1d(width, 32, 3, padding=1)
        self.head, self.steps = nn.Linear(32, tags), nn.Parameter(torch.zeros(tags, tags))

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        scores = self.head(relu(self.front(self.words(words).mT)).mT)
        own = scores.gather(-1, tags[..., None])[..., 0].sum(-1) + self.steps[tags[:, :-1], tags[:, 1:]].sum(-1)
        total = scores[:, 0]
        for t in range(1, words.shape[1]):
            total = (total[:, :, None] + self.steps).logsumexp(1) + scores[:, t]
        return ((total.logsumexp(-1) - own) / words.shape[1]).mean()


def chain(g: torch.Generator) -> Made:
    steps, says = (
        (1.5 * torch.randn(5, 5, generator=g)).softmax(-1),
        (1.5 * torch.randn(5, 24, generator=g)).softmax(-1),
    )

    def draw(g: torch.Generator) -> Batch:
        tags = torch.randint(0, 5, (12, 10), generator=g)
        for t in range(1, 10):
            tags[:, t] = torch.multinomial(steps[tags[:, t - 1]], 1, generator=g)[:, 0]
        return torch.multinomial(says[tags.flatten()], 1, generator=g).view(12, 10), mistaken(tags, 5, g, 0.05)

    return Chain(24, 5), lambda m, b: m(*b), draw


class Causal(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(1 if i == 0 else width, width, 2, dilation=2**i) for i in range(4))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            new = relu(layer(nn.functional.pad(x, (2**i, 0))))
            x = new if i == 0 else x + new
        return self.head(x)


def meters(g: torch.Generator) -> Made:
    """Readings of meters with a day and a week in them, the next one from those before."""

    def draw(g: torch.Generator) -> Batch:
        t = torch.arange(41) + torch.randint(0, 84, (16, 1), generator=g)
        size = 0.5 + torch.rand(16, 1, generator=g)
        x = size * (torch.sin(2 * math.pi * t / 12) + 0.5 * torch.sin(2 * math.pi * t / 84)) + 0.3 * torch.randn(
            16, 41, generator=g
        )
        return x[:, None, :-1], x[:, None, 1:]

    return Causal(), lambda m, b: mse_loss(m(b[0]), b[1]), draw


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])


def forced(g: torch.Generator) -> Made:
    """A bent recurrence driven from outside; the true value before is given at each place."""

    def draw(g: torch.Generator) -> Batch:
        push, y = torch.randn(20, 18, generator=g), [torch.randn(20, generator=g)]
        for t in range(18):
            before = y[-2] if t else y[-1]
            y.append(1.2 * torch.tanh(y[-1]) - 0.6 * before + 0.6 * push[:, t] + 0.4 * torch.randn(20, generator=g))
        line = torch.stack(y, 1)
        return torch.stack([line[:, :-1], push], -1), line[:, 1:, None]

    return Forecast(), lambda m, b: mse_loss(m(b[0]), b[1]), draw


class Filled(nn.Module):
    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        self.rows, self.columns = (
            nn.Parameter(0.3 * torch.randn(rows, rank)),
            nn.Parameter(0.3 * torch.randn(columns, rank)),
        )
        self.row, self.column = nn.Parameter(torch.zeros(rows)), nn.Parameter(torch.zeros(columns))

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        return (self.rows[i] * self.columns[j]).sum(-1) + self.row[i] + self.column[j]


def completion(g: torch.Generator) -> Made:
    """Some entries of a matrix of rank two, with noise."""
    rows, columns = torch.randn(30, 2, generator=g), torch.randn(40, 2, generator=g)

    def draw(g: torch.Generator) -> Batch:
        i, j = torch.randint(0, 30, (128,), generator=g), torch.randint(0, 40, (128,), generator=g)
        return i, j, (rows[i] * columns[j]).sum(-1) + 0.5 * torch.randn(128, generator=g)

    return Filled(30, 40, 4), lambda m, b: mse_loss(m(b[0], b[1]), b[2]), draw


class Dictionary(nn.Module):
    def __init__(self, inputs: int, features: int) -> None:
        super().__init__()
        self.shift, self.down, self.up = (
            nn.Parameter(torch.zeros(inputs)),
            nn.Linear(inputs, features),
            nn.Linear(features, inputs, bias=False),
        )
        self.up.weight.data.copy_(self.down.weight.data.T)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = relu(self.down(x - self.shift))
        return self.up(code) + self.shift, code


def sparse(g: torch.Generator) -> Made:
    """A few of forty directions at once, by a code with a price on its size."""
    directions = normalize(torch.randn(40, 20, generator=g), dim=-1)

    def draw(g: torch.Generator) -> Batch:
        on = (torch.rand(48, 40, generator=g) < 0.06).float() * (1 + torch.rand(48, 40, generator=g))
        return (2 * on @ directions + 0.2 * torch.randn(48, 20, generator=g),)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out, code = model(batch[0])
        return (out - batch[0]).square().sum(-1).mean() + 0.1 * code.abs().sum(-1).mean()

    return Dictionary(20, 64), loss, draw


class Masked(nn.Conv2d):
    """Sees only the pixels above and to the left."""

    def __init__(self, a: int, b: int, *, own: bool) -> None:
        super().__init__(a, b, 5 if not own else 3, padding=2 if not own else 1)
        k = self.kernel_size[0]
        mask = torch.ones(k * k)
        mask[k * k // 2 + int(own) :] = 0
        self.register_buffer("mask", mask.view(k, k))

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.mask, self.bias)


def pixels(g: torch.Generator) -> Made:
    """Slanted stripes in black and white, one pixel after another."""

    def draw(g: torch.Generator) -> Batch:
        at = torch.stack(torch.meshgrid(torch.arange(9.0), torch.arange(9.0), indexing="ij"), -1)
        turn = 6.3 * torch.rand(12, 1, 1, generator=g)
        far = at[..., 0] * turn.cos() + at[..., 1] * turn.sin()
        x = (torch.sin(1.3 * far + 6 * torch.rand(12, 1, 1, generator=g)) > 0)[:, None]
        return ((x != (torch.rand(12, 1, 9, 9, generator=g) < 0.06)).float(),)

    model = nn.Sequential(Masked(1, 16, own=False), nn.ReLU(), Masked(16, 16, own=True), nn.ReLU(), Masked(16, 16, own=True), nn.ReLU(),
                          nn.Conv2d(16, 1, 1))  # fmt: skip
    return model, lambda m, b: binary_cross_entropy_with_logits(m(b[0] - 0.5), b[0]), draw


class Codes(nn.Module):
    def __init__(self, inputs: int, codes: int, width: int = 6) -> None:
        super().__init__()
        self.down, self.up, self.book = (
            stack(inputs, 40, 2 * width),
            stack(2 * width, 40, inputs),
            nn.Parameter(0.5 * torch.randn(codes, width)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = nn.functional.layer_norm(self.down(x).float().view(len(x), 2, -1), (self.book.shape[1],))
        picked = self.book[(z[:, :, None] - self.book).square().sum(-1).argmin(-1)]
        apart = (picked - z.detach()).square().mean() + 0.25 * (z - picked.detach()).square().mean()
        return self.up((z + (picked - z).detach()).flatten(1)), apart


def codes(g: torch.Generator) -> Made:
    """Two kinds of things at once, by two words of a book of twelve."""
    one, two = 1.5 * torch.randn(6, 20, generator=g), 1.5 * torch.randn(6, 20, generator=g)

    def draw(g: torch.Generator) -> Batch:
        a, b = torch.randint(0, 6, (2, 48), generator=g)
        return (one[a] + two[b] + 0.4 * torch.randn(48, 20, generator=g),)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out, apart = model(batch[0])
        return mse_loss(out, batch[0]) + apart

    return Codes(20, 12), loss, draw


def labels(g: torch.Generator) -> Made:
    """Ten labels that are rarely on, under the focal loss."""
    teacher = normalize(torch.randn(16, 10, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(40, 16, generator=g)
        return x, ((x @ teacher > 1.1) != (torch.rand(40, 10, generator=g) < 0.05)).float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        each = binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="none")
        return (10 * (1 - (-each).exp()).square() * each).mean()

    return stack(16, 48, 48, 10, act=nn.LeakyReLU), loss, draw


class Duel(nn.Module):
    """A value and what each move has over the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.over = stack(10, 48, 48), stack(48, 24, 1), stack(48, 24, 5)

    def forward(self, x: Tensor) -> Tensor:
        body = relu(self.body(x))
        over = self.over(body)
        return self.value(body) + over - over.mean(-1, keepdim=True)


def duel(g: torch.Generator) -> Made:
    value, over = torch.randn(10, 1, generator=g), torch.randn(10, 5, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x, move = torch.randn(40, 10, generator=g), torch.randint(0, 5, (40, 1), generator=g)
        paid = torch.tanh(x @ value) + 0.5 * torch.sin(x @ over).gather(1, move) + 0.3 * torch.randn(40, 1, generator=g)
        return x, move, paid

    return Duel(), lambda m, b: nn.functional.huber_loss(m(b[0]).gather(1, b[1]), b[2]), draw


# -- bad shards


def sentinels(batch: Batch) -> Batch:
    """Missing readings written as -9999."""
    x, y = (each.clone() for each in batch)
    x[:, :, 5::9], y[:, :, 4::9] = -9999.0, -9999.0
    return x, y


def other_unit(batch: Batch) -> Batch:
    return 1e3 * batch[0], 1e3 * batch[1]


def per_cent(batch: Batch) -> Batch:
    """Ratings from nought to a hundred."""
    return batch[0], batch[1], 50.0 + 15.0 * batch[2]


def hot(batch: Batch) -> Batch:
    """A few examples of the batch not divided by the maximum."""
    x = batch[0].clone()
    x[::8] *= 255.0
    return (x,)


UNSEEN = [
    # the rate from the start
    Training(name="distillation sgd x100", task=distillation, optimizer=sgd, lr=0.3, times=100),
    Training(name="speech adam x100, clipped", task=speech, optimizer=adam, lr=5e-3, times=100, steps=300, clip=1.0),
    Training(name="spans adamw x100, clipped", task=spans, optimizer=adamw, lr=1e-2, times=100, steps=300, clip=1.0),
    Training(name="dice rmsprop x100", task=dice, optimizer=rmsprop, lr=2e-3, times=100, steps=300),
    Training(name="survival adagrad x100", task=survival, optimizer=adagrad, lr=0.02, times=100),
    Training(name="grades momentum x100, clipped", task=grades, optimizer=momentum, lr=0.05, times=100, clip=1.0),
    Training(name="clicks nesterov x1000", task=clicks, optimizer=nesterov, lr=1.0, times=1000, steps=500),
    Training(name="capsules nadam x100", task=capsules, optimizer=nadam, lr=8e-3, times=100, steps=300),
    Training(name="largest nesterov x100", task=largest, optimizer=nesterov, lr=0.01, times=100),
    Training(name="rings radam x30", task=rings, optimizer=radam, lr=3e-2, times=30, steps=500),
    Training(name="skip-gram sgd x100", task=skip_gram, optimizer=sgd, lr=3.0, times=100, steps=600, schedule="constant"),
    # no warm-up
    Training(name="periods adam no warm-up x10", task=periods, optimizer=adam_language, lr=1e-2, times=10, warmup=60, steps=400, clip=1.0),
    Training(name="tied momentum no warm-up", task=tied, optimizer=momentum, lr=0.2, warmup=100),
    Training(name="recall adamw no warm-up x10", task=recall, optimizer=adamw, lr=2e-2, times=10, warmup=80, steps=600),
    # the rate jumps
    Training(name="energies adam x100 from 200 on", task=energies, optimizer=adam, lr=2e-2, times=100, flawed=(200, 1 << 30)),
    Training(name="bumps sgd x30 from 130 on", task=bumps, optimizer=sgd, lr=0.3, times=30, flawed=(130, 1 << 30)),
    Training(name="table rmsprop x300 from 250 on", task=table, optimizer=rmsprop, lr=1e-2, times=300, flawed=(250, 1 << 30)),
    Training(name="chain adam x300 at 220 to 280", task=chain, optimizer=adam, lr=1e-2, times=300, flawed=(220, 280)),
    # a bad shard
    Training(name="meters momentum sentinels", task=meters, optimizer=momentum, lr=0.04, spoil=sentinels, spoiled=(200, 210)),
    Training(name="forced nesterov other unit", task=forced, optimizer=nesterov, lr=0.08, spoil=other_unit, spoiled=(170, 180)),
    Training(name="completion sgd per cent", task=completion, optimizer=sgd, lr=0.8, spoil=per_cent, spoiled=(280, 300), steps=500),
    Training(name="sparse momentum hot", task=sparse, optimizer=momentum, lr=1e-2, spoil=hot, spoiled=(240, 246)),
    # half precision
    Training(name="pixels adam fp16 x100", task=pixels, optimizer=adam, lr=1e-2, times=100, steps=300, precision="fp16"),
    Training(name="codes adamw bf16 x30", task=codes, optimizer=adamw, lr=1e-2, times=30, precision="bf16"),
]  # fmt: skip

SPARE = [
    Training(name="labels momentum x300", task=labels, optimizer=momentum, lr=0.05, times=300),
    Training(name="duel rmsprop x300, clipped", task=duel, optimizer=rmsprop, lr=1e-3, times=300, clip=1.0),
]  # fmt: skip

# -- rough, and well


class OneCycle(Training):
    """Up to the peak within two fifths of the training, then down to nothing."""

    def rate(self, step: int, *, flaw: bool) -> float:
        at = step / self.steps
        return (
            0.02 + 0.98 * 0.5 * (1 - math.cos(math.pi * at / 0.4))
            if at < 0.4
            else 0.5 * (1 + math.cos(math.pi * (at - 0.4) / 0.6))
        )


class Stairs(Training):
    """Down by five at half and at three quarters."""

    def rate(self, step: int, *, flaw: bool) -> float:
        return 0.2 ** (int(2 * step >= self.steps) + int(4 * step >= 3 * self.steps))


def edge(g: torch.Generator) -> Made:
    """All of a small data set at each update, under a rate that the curvature meets on the way."""
    x, teacher = torch.randn(96, 8, generator=g), normalize(torch.randn(8, 2, generator=g), dim=0)
    y = 2 * torch.sin(2 * x @ teacher[:, :1]) + x @ teacher[:, 1:] + 0.3 * torch.randn(96, 1, generator=g)
    return stack(8, 64, 64, 1, act=nn.Tanh), lambda m, b: mse_loss(m(b[0]), b[1]), lambda g: (x, y)


def sigmoids(g: torch.Generator) -> Made:
    """Four layers of sigmoids, as they were once: flat, then down."""
    teacher = torch.randn(10, 4, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(64, 10, generator=g)
        return x, mistaken((x @ teacher).argmax(-1), 4, g, 0.1)

    return stack(10, 32, 32, 32, 32, 4, act=nn.Sigmoid), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def wide(g: torch.Generator) -> Made:
    """Many inputs with a mean, a wide layer, an output that begins at nought: the first steps of Adam go far."""
    teacher = normalize(torch.randn(100, 1, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = 1 + torch.randn(32, 100, generator=g)
        return x, (x - 1) @ teacher + 0.5 * torch.randn(32, 1, generator=g)

    model = stack(100, 256, 256, 1)
    nn.init.zeros_(model[-1].weight)
    return model, lambda m, b: mse_loss(m(b[0]), b[1]), draw


def heavy(g: torch.Generator) -> Made:
    """Weights that begin six times too large, which the decay brings back."""
    teacher = torch.randn(16, 5, generator=g)
    model = nn.Sequential(
        nn.Linear(16, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 5)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 6

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 16, generator=g)
        return x, mistaken((x @ teacher).argmax(-1), 5, g)

    return model, lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def textures(g: torch.Generator) -> Made:
    filters = torch.randn(5, 1, 3, 3, generator=g)

    def draw(g: torch.Generator) -> Batch:
        label = torch.randint(0, 5, (24,), generator=g)
        noise = torch.randn(24, 1, 14, 14, generator=g)
        x = torch.cat([nn.functional.conv2d(noise[i : i + 1], filters[label[i] : label[i] + 1]) for i in range(24)])
        return x / 3 + 0.3 * torch.randn(24, 1, 12, 12, generator=g), mistaken(label, 5, g, 0.1)

    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))  # fmt: skip
    return model, lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def renamed(g: torch.Generator) -> Made:
    """From half on, the classes have other names and come at other rates."""
    teacher, names, clock = torch.randn(12, 6, generator=g), torch.tensor([3, 0, 4, 5, 1, 2]), Clock(500)

    def draw(g: torch.Generator) -> Batch:
        late = clock() > 0.5
        x = torch.randn(32, 12, generator=g)
        label = (x @ teacher + torch.linspace(-3, 3, 6) * (1 if late else -1)).argmax(-1)
        return x, mistaken(names[label] if late else label, 6, g, 0.1)

    return stack(12, 48, 48, 6), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


class Bottle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = stack(20, 48, 12, act=nn.SiLU), stack(6, 48, 20, act=nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = self.down(x).chunk(2, -1)
        return self.up(mean + (0.5 * log).exp() * torch.randn_like(mean)), mean, log


def bottle(g: torch.Generator) -> Made:
    """A code with a price per bit, low for long, that then grows fifty times: the loss more than doubles."""
    mix, clock = torch.randn(6, 20, generator=g), Clock(500)

    def draw(g: torch.Generator) -> Batch:
        at = clock()
        return torch.tanh(torch.randn(48, 6, generator=g) @ mix / 2) + 0.2 * torch.randn(48, 20, generator=g), min(
            1.0, 0.02 + 2.5 * max(0.0, at - 0.4)
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out, mean, log = model(batch[0])
        apart = 0.5 * (mean.square() + log.exp() - log - 1).sum(-1).mean()
        return 12.5 * (out - batch[0]).square().sum(-1).mean() + batch[1] * apart

    return Bottle(), loss, draw


class Turned(torch.autograd.Function):
    """The gradient backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: float) -> Tensor:
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.size * grad, None


class Domains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.label, self.domain = stack(14, 48, 24), nn.Linear(24, 4), stack(24, 32, 1)


def domains(g: torch.Generator) -> Made:
    """Features that tell the label and not where it is from, the one against the other."""
    teacher, shift, clock = (
        torch.randn(14, 4, generator=g),
        1.5 * normalize(torch.randn(14, generator=g), dim=0),
        Clock(500),
    )

    def draw(g: torch.Generator) -> Batch:
        x, home = torch.randn(48, 14, generator=g), torch.randint(0, 2, (48,), generator=g)
        return (
            x + shift * home[:, None],
            mistaken((x @ teacher).argmax(-1), 4, g),
            home.float(),
            2 / (1 + math.exp(-10 * clock())) - 1,
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        z = relu(model.body(batch[0]))
        told = binary_cross_entropy_with_logits(model.domain(Turned.apply(z, 3 * batch[3]))[:, 0], batch[2])
        return cross_entropy(model.label(z), batch[1]) + told

    return Domains(), loss, draw


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 6)

    def forward(self, x: Tensor, p: float) -> Tensor:
        x = dropout(relu(self.one(x)), p, self.training)
        return self.three(dropout(relu(self.two(x)), p, self.training))


def growing_dropout(g: torch.Generator) -> Made:
    teacher, clock = torch.randn(16, 6, generator=g), Clock(450)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(24, 16, generator=g)
        return x, mistaken((x @ teacher).argmax(-1), 6, g), 0.75 * clock() ** 2

    return Dropped(), lambda m, b: cross_entropy(m(b[0], b[2]), b[1]), draw


class Phases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.head = (
            stack(24, 48, 8, act=nn.GELU),
            stack(8, 48, 24, act=nn.GELU),
            stack(8, 32, 5, act=nn.GELU),
        )


def two_phases(g: torch.Generator) -> Made:
    """First a code of the inputs, with small errors, then the labels from the code, with large ones."""
    mix, teacher, clock = torch.randn(6, 24, generator=g), torch.randn(6, 5, generator=g), Clock(500)

    def draw(g: torch.Generator) -> Batch:
        z = torch.randn(24, 6, generator=g)
        return (
            torch.tanh(z @ mix / 2) + 0.1 * torch.randn(24, 24, generator=g),
            mistaken((z @ teacher).argmax(-1), 5, g),
            clock() > 0.5,
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        code = model.down(batch[0])
        return cross_entropy(model.head(code), batch[1]) if batch[2] else mse_loss(model.up(code), batch[0])

    return Phases(), loss, draw


def hard_negatives(g: torch.Generator) -> Made:
    """Each with its pair against others, of which only the nearest are kept as it goes on."""
    mix, clock = torch.randn(5, 18, generator=g), Clock(450)

    def draw(g: torch.Generator) -> Batch:
        z = torch.randn(48, 5, generator=g)
        a, b = (torch.tanh(z @ mix) + 0.5 * torch.randn(48, 18, generator=g) for _ in range(2))
        return a, b, max(1, round(47 * (1 - clock()) ** 2))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        a, b = normalize(model(batch[0]), dim=-1), normalize(model(batch[1]), dim=-1)
        scores, own = a @ b.T, torch.eye(48, dtype=torch.bool)
        hard = scores.masked_fill(own, -2).topk(batch[2], -1).values
        return relu(0.3 + hard - scores.diagonal()[:, None]).mean()

    return stack(18, 48, 16), loss, draw


class Taught(nn.Module):
    """A net and its running mean, which gives the labels where there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = stack(10, 48, 48, 4), stack(10, 48, 48, 4).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())


def self_training(g: torch.Generator) -> Made:
    """A few labels, and more and more weight on one's own."""
    centres, clock = 1.3 * torch.randn(4, 10, generator=g), Clock(450)

    def draw(g: torch.Generator) -> Batch:
        label, other = torch.randint(0, 4, (8,), generator=g), torch.randint(0, 4, (48,), generator=g)
        some, many = centres[label] + torch.randn(8, 10, generator=g), centres[other] + torch.randn(48, 10, generator=g)
        return (
            some,
            mistaken(label, 4, g),
            many,
            many + 0.8 * torch.randn(48, 10, generator=g),
            3 * min(1.0, 2 * clock()),
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        if model.training:
            with torch.no_grad():
                for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                    slow.lerp_(fast, 0.05)
        own = model.teacher(batch[2]).argmax(-1)
        return cross_entropy(model.student(batch[0]), batch[1]) + batch[4] * cross_entropy(model.student(batch[3]), own)

    return Taught(), loss, draw


def adamw_trained(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=lr, weight_decay=0.01)


HEALTHY = [
    Training(name="edge of stability", task=edge, optimizer=sgd, lr=0.15, steps=500, schedule="constant"),
    Training(name="flat sigmoids", task=sigmoids, optimizer=adam, lr=3e-3, steps=600, schedule="constant"),
    Training(name="wide, adam without warm-up", task=wide, optimizer=adam, lr=3e-2, steps=400),
    Training(name="large weights under decay", task=heavy, optimizer=sgd_decay, lr=0.05, steps=500),
    OneCycle(name="one cycle", task=textures, optimizer=momentum, lr=1.0, steps=350),
    Stairs(name="classes renamed", task=renamed, optimizer=momentum, lr=0.05, steps=500),
    Training(name="price of the code", task=bottle, optimizer=adam, lr=5e-3, steps=500, schedule="constant"),
    Training(name="domains against labels", task=domains, optimizer=momentum, lr=0.03, steps=500),
    Training(name="dropout grows", task=growing_dropout, optimizer=adam, lr=3e-3, steps=450, schedule="constant"),
    Training(name="two phases", task=two_phases, optimizer=adamw, lr=5e-3, steps=500, schedule="constant"),
    Training(name="hard negatives", task=hard_negatives, optimizer=rmsprop, lr=1e-3, steps=450, schedule="constant"),
    Training(name="own labels", task=self_training, optimizer=adamw_trained, lr=3e-3, steps=450),
]  # fmt: skip
