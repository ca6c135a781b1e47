"""Twenty-four trainings that diverge, each with its healthy twin: twelve to tune on and twelve to score.

A training is a model with a loss and an endless supply of batches, an optimizer with a rate that works, and a flaw: the
rate times ten to a thousand, no warm-up, a rate that jumps on the way, a stretch of bad data, half precision. The
healthy twin is the same without the flaw. Labels have noise, so that the lowest loss that can be reached is not zero
and two per cent of it mean something.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, normalize, softplus

Batch = Any
Loss = Callable[[nn.Module, Batch], Tensor]
Draw = Callable[[torch.Generator], Batch]
Task = Callable[[torch.Generator], tuple[nn.Module, Loss, Draw]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training with its flaw. `times` multiplies the rate within `flawed` (the first update and the one after the
    last); `spoil` is done to the batches of `spoiled`."""

    name: str
    task: Task
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float
    times: float = 1.0
    steps: int = 400
    schedule: str = "cosine"
    warmup: int = 0
    """Updates of warm-up that the healthy twin has, and the flawed one not."""
    flawed: tuple[int, int] = (0, 1 << 30)
    spoil: Callable[[Batch], Batch] | None = None
    spoiled: tuple[int, int] = (0, 0)
    precision: str = "fp32"
    clip: float | None = None

    def rate(self, step: int, *, flaw: bool) -> float:
        """What the rate is multiplied by at an update."""
        factor = self.times if flaw and self.flawed[0] <= step < self.flawed[1] else 1.0
        if self.schedule == "cosine":
            factor *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        return factor if flaw or not self.warmup else factor * min(1.0, (step + 1) / self.warmup)


# -- tasks


def _labels(logits: Tensor, g: torch.Generator, noise: float = 0.15) -> Tensor:
    """The teacher's answers, some of them wrong."""
    labels = logits.argmax(-1)
    wrong = torch.rand(labels.shape, generator=g) < noise
    return torch.where(wrong, torch.randint(0, logits.shape[-1], labels.shape, generator=g), labels)


def _classes(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def _values(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


def _next_token(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


def _mlp(*widths: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), between()]
    return nn.Sequential(*layers[:-1])


def mlp_classes(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    teacher = torch.randn(16, 6, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 16, generator=g)
        return x, _labels(x @ teacher, g)

    return _mlp(16, 64, 64, 6), _classes, draw


def mlp_values(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    teacher = torch.randn(12, 1, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 12, generator=g)
        return x, torch.tanh(x @ teacher / 2) + 0.5 * torch.randn(32, 1, generator=g)

    return _mlp(12, 48, 48, 1, between=nn.Tanh), _values, draw


def _images(g: torch.Generator, count: int, patterns: Tensor) -> Batch:
    """Noisy pictures of a few patterns, some labelled wrongly."""
    labels = torch.randint(0, len(patterns), (count,), generator=g)
    x = patterns[labels] + 1.0 * torch.randn(count, *patterns.shape[1:], generator=g)
    return x, _labels(nn.functional.one_hot(labels, len(patterns)).float(), g)


def cnn(norm: bool) -> Task:
    def task(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
        patterns = 0.5 * torch.randn(5, 1, 10, 10, generator=g)
        normed = [nn.BatchNorm2d(8)] if norm else []
        model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *normed, nn.ReLU(), nn.MaxPool2d(2),
                              nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
                              nn.Linear(16 * 25, 5))  # fmt: skip
        return model, _classes, lambda g: _images(g, 24, patterns)

    return task


class Block(nn.Module):
    def __init__(self, width: int, *, post: bool = False, causal: bool = True) -> None:
        super().__init__()
        self.post, self.causal = post, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def _mix(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (each.reshape(b, t, 2, c // 2).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        answer: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return answer

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self._mix(x))
            answer: Tensor = self.norm2(x + self.mlp(x))
            return answer
        x = x + self._mix(self.norm1(x))
        answer = x + self.mlp(self.norm2(x))
        return answer


class GPT(nn.Module):
    def __init__(self, words: int, width: int = 32, layers: int = 2, length: int = 24, *, post: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, post=post) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        answer: Tensor = self.head(self.norm(self.blocks(x)))
        return answer


class Recurrent(nn.Module):
    def __init__(self, words: int, cell: type[nn.LSTM] | type[nn.GRU], width: int = 32) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(words, width), nn.Linear(48, words)
        self.cell = cell(width, 48, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.cell(self.tokens(tokens))[0])
        return answer


def sentences(words: int, model: Callable[[], nn.Module], length: int = 17) -> Task:
    """Text of a random second-order grammar."""

    def task(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
        grammar = (2.0 * torch.randn(words, words, generator=g)).softmax(-1)

        def draw(g: torch.Generator) -> Batch:
            tokens = torch.randint(0, words, (12, length), generator=g)
            for place in range(1, length):
                tokens[:, place] = torch.multinomial(grammar[tokens[:, place - 1]], 1, generator=g)[:, 0]
            return (tokens,)

        return model(), _next_token, draw

    return task


def autoencoder(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    basis = torch.randn(4, 24, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.tanh(torch.randn(32, 4, generator=g) @ basis) + 0.3 * torch.randn(32, 24, generator=g)
        return x, x

    return _mlp(24, 32, 6, 32, 24), _values, draw


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = x + self.inner(x)
        return answer


def residual_classes(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    teacher = torch.randn(20, 8, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 20, generator=g)
        return x, _labels(x.abs() @ teacher, g)

    body = [Residual(_mlp(48, 48, 48, between=nn.GELU)) for _ in range(4)]
    return nn.Sequential(nn.Linear(20, 48), *body, nn.LayerNorm(48), nn.Linear(48, 8)), _classes, draw


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 24, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(9, 24))
        self.blocks, self.head = nn.Sequential(*(Block(24, causal=False) for _ in range(2))), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.blocks(self.patches(x).flatten(2).mT + self.places).mean(1))
        return answer


def vit(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    patterns = 0.6 * torch.randn(4, 1, 12, 12, generator=g)
    return ViT(), _classes, lambda g: _images(g, 24, patterns)


def waves(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    """Forecasts by a one-dimensional convolutional net."""

    def draw(g: torch.Generator) -> Batch:
        t = torch.arange(33.0) + 6 * torch.rand(24, 1, generator=g)
        x = torch.sin(t * (0.3 + 0.5 * torch.rand(24, 1, generator=g))) + 0.3 * torch.randn(24, 33, generator=g)
        return x[:, None, :-1], x[:, -1:]

    model = nn.Sequential(nn.Conv1d(1, 12, 5), nn.SiLU(), nn.Conv1d(12, 12, 5, stride=2), nn.SiLU(), nn.Flatten(),
                          nn.Linear(12 * 12, 1))  # fmt: skip
    return model, _values, draw


class Sets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = _mlp(4, 32, 32), _mlp(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.all(self.each(x).mean(1))
        return answer


def sets(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 6, 4, generator=g)
        return x, x.square().mean((1, 2), keepdim=True)[:, 0] + 0.2 * torch.randn(32, 1, generator=g)

    return Sets(), _values, draw


def picture_autoencoder(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    patterns = 0.8 * torch.randn(6, 1, 12, 12, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x, _ = _images(g, 16, patterns)
        return x, x

    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1),
                          nn.ReLU(), nn.ConvTranspose2d(12, 8, 2, stride=2), nn.ReLU(),
                          nn.ConvTranspose2d(8, 1, 2, stride=2))  # fmt: skip
    return model, _values, draw


class Factors(nn.Module):
    """Ratings from two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(40, 8), nn.Embedding(60, 8)

    def forward(self, pairs: Tensor) -> Tensor:
        answer: Tensor = (self.users(pairs[:, 0]) * self.things(pairs[:, 1])).sum(1)
        return answer


def ratings(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    users, things = torch.randn(40, 3, generator=g), torch.randn(60, 3, generator=g)

    def draw(g: torch.Generator) -> Batch:
        pairs = torch.stack([torch.randint(0, 40, (64,), generator=g), torch.randint(0, 60, (64,), generator=g)], 1)
        truth = (users[pairs[:, 0]] * things[pairs[:, 1]]).sum(1)
        return pairs, (truth + torch.randn(64, generator=g) > 0).float()

    return Factors(), lambda model, batch: binary_cross_entropy_with_logits(model(batch[0]), batch[1]), draw


class Likelihood(nn.Module):
    """A mean and a spread for each point."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp(6, 40, 40, 2, between=nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.body(x)
        return answer


def likelihood(g: torch.Generator) -> tuple[nn.Module, Loss, Draw]:
    teacher = normalize(torch.randn(6, 1, generator=g), dim=0)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        mean, raw = model(batch[0]).chunk(2, -1)
        spread = softplus(raw) + 0.05
        answer: Tensor = (0.5 * ((batch[1] - mean) / spread).square() + spread.log()).mean() + 2.0
        return answer

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 6, generator=g)
        return x, torch.sin(2 * x @ teacher) + 0.5 * torch.randn(32, 1, generator=g)

    return Likelihood(), loss, draw


# -- flaws of the data


def unscaled(batch: Batch) -> Batch:
    """Raw values instead of standardised ones."""
    return (200.0 * batch[0] + 100.0, *batch[1:])


def unscaled_targets(batch: Batch) -> Batch:
    return batch[0], 1e4 * batch[1] + 3e3


# -- optimizers


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def nesterov(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr)


def adamw(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)


def rmsprop(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=lr)


def nadam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.NAdam(parameters, lr=lr)


_gpt = sentences(24, lambda: GPT(24))
_lstm = sentences(16, lambda: Recurrent(16, nn.LSTM))

TUNED = [
    Training(name="mlp sgd x100", task=mlp_classes, optimizer=sgd, lr=0.1, times=100),
    Training(name="mlp tanh sgd x30", task=mlp_values, optimizer=sgd, lr=0.1, times=30),
    Training(name="mlp adam x100", task=mlp_classes, optimizer=adam, lr=3e-3, times=100),
    Training(name="cnn momentum x30", task=cnn(False), optimizer=momentum, lr=0.02, times=30),
    Training(name="cnn batch norm adam x300", task=cnn(True), optimizer=adam, lr=2e-3, times=300),
    Training(name="gpt adamw x100", task=_gpt, optimizer=adamw, lr=3e-3, times=100),
    Training(name="gpt post-norm no warm-up x10", task=sentences(24, lambda: GPT(24, layers=4, post=True)),
             optimizer=adam, lr=2e-3, times=10, warmup=60),
    Training(name="lstm rmsprop x1000", task=_lstm, optimizer=rmsprop, lr=2e-3, times=1000),
    Training(name="autoencoder rmsprop x100", task=autoencoder, optimizer=rmsprop, lr=1e-3, times=100),
    Training(name="mlp momentum bad shard", task=mlp_values, optimizer=momentum, lr=0.02, spoil=unscaled_targets,
             spoiled=(150, 166)),
    Training(name="gpt adamw bf16 x100 from 200 on", task=_gpt, optimizer=adamw, lr=3e-3, times=100,
             flawed=(200, 1 << 30), precision="bf16"),
    Training(name="mlp sgd fp16 x1000", task=mlp_classes, optimizer=sgd, lr=0.1, times=1000, precision="fp16"),
]  # fmt: skip

UNSEEN = [
    Training(name="residual adamw x100", task=residual_classes, optimizer=adamw, lr=2e-3, times=100),
    Training(name="residual momentum x30", task=residual_classes, optimizer=momentum, lr=0.02, times=30, clip=1.0),
    Training(name="vit adamw x100 from 150 on", task=vit, optimizer=adamw, lr=2e-3, times=100, flawed=(150, 1 << 30)),
    Training(name="waves sgd x100", task=waves, optimizer=sgd, lr=0.05, times=100),
    Training(name="waves rmsprop x300", task=waves, optimizer=rmsprop, lr=1e-3, times=300),
    Training(name="sets nesterov x100", task=sets, optimizer=nesterov, lr=0.01, times=100),
    Training(name="sets momentum bad shard", task=sets, optimizer=momentum, lr=0.01, spoil=unscaled,
             spoiled=(200, 208)),
    Training(name="picture autoencoder adam x1000", task=picture_autoencoder, optimizer=adam, lr=3e-3, times=1000),
    Training(name="ratings sgd x100", task=ratings, optimizer=sgd, lr=1.0, times=100),
    Training(name="gru nadam x100", task=sentences(20, lambda: Recurrent(20, nn.GRU)), optimizer=nadam, lr=5e-3,
             times=100),
    Training(name="likelihood sgd x10, constant rate", task=likelihood, optimizer=sgd, lr=0.05, times=10,
             schedule="constant"),
    Training(name="gpt post-norm fp16 no warm-up x30", task=sentences(20, lambda: GPT(20, layers=2, post=True)),
             optimizer=adamw, lr=2e-3, times=30, warmup=60, precision="fp16"),
]  # fmt: skip
