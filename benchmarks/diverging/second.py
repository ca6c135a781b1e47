"""A second set: twenty-four trainings that diverge, and twelve rough ones that do not."""
# ruff: noqa: E501

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    normalize,
    relu,
    silu,
    smooth_l1_loss,
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


# -- optimizers the other file has not


def adagrad(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=lr)


def radam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.RAdam(parameters, lr=lr)


def adamax(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adamax(parameters, lr=lr)


def adam_small(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """For gradients below the usual epsilon."""
    return torch.optim.Adam(parameters, lr=lr, eps=1e-16)


def adam_fast(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """The second moment of language models."""
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


# -- pieces


def net(*widths: int, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(widths) - 1):
        layers.append(nn.Linear(widths[i], widths[i + 1]))
        if i < len(widths) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def flip(labels: Tensor, classes: int, g: torch.Generator, share: float = 0.15) -> Tensor:
    wrong = torch.rand(labels.shape, generator=g) < share
    return torch.where(wrong, torch.randint(0, classes, labels.shape, generator=g), labels)


# -- tasks of the trainings that diverge


class Experts(nn.Module):
    def __init__(self, inputs: int, classes: int, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(inputs, experts)
        self.experts = nn.ModuleList(net(inputs, 32, classes) for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gate(x).softmax(-1)
        top, which = gates.topk(2, -1)
        kept = torch.zeros_like(gates).scatter(-1, which, top / top.sum(-1, keepdim=True))
        outs = torch.stack([e(x) for e in self.experts], 1)
        return (kept[..., None] * outs).sum(1), gates


def experts(g: torch.Generator) -> Made:
    centres = 2.0 * torch.randn(4, 16, generator=g)
    teachers = torch.randn(4, 16, 6, generator=g)

    def draw(g: torch.Generator) -> Batch:
        home = torch.randint(0, 4, (48,), generator=g)
        z = torch.randn(48, 16, generator=g)
        logits = torch.einsum("bi,bio->bo", z, teachers[home])
        return z + centres[home], flip(logits.argmax(-1), 6, g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, gates = model(batch[0])
        return cross_entropy(logits, batch[1]) + 0.01 * 4 * gates.mean(0).square().sum()

    return Experts(16, 6), loss, draw


class Tagger(nn.Module):
    def __init__(self, words: int, tags: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(12, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.encoder(self.words(x) + self.places.weight[: x.shape[1]]))
        return answer


def tagging(g: torch.Generator) -> Made:
    own, left = 2 * torch.randn(20, 5, generator=g), 1.5 * torch.randn(20, 5, generator=g)

    def draw(g: torch.Generator) -> Batch:
        words = torch.randint(0, 20, (12, 12), generator=g)
        return words, flip((own[words] + left[words.roll(1, 1)]).argmax(-1), 5, g, 0.1)

    return Tagger(20, 5), lambda m, b: cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten()), draw


def noise_prediction(g: torch.Generator) -> Made:
    centres = 1.5 * torch.randn(5, 6, generator=g)

    def draw(g: torch.Generator) -> Batch:
        clean = centres[torch.randint(0, 5, (64,), generator=g)] + 0.2 * torch.randn(64, 6, generator=g)
        return clean, torch.rand(64, 1, generator=g), torch.randn(64, 6, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        clean, t, noise = batch
        keep = torch.cos(0.5 * math.pi * t)
        time = torch.cat(
            [torch.sin(f * math.pi * t) for f in (0.5, 1, 2, 4)] + [torch.cos(f * math.pi * t) for f in (0.5, 1, 2, 4)],
            1,
        )
        return mse_loss(model(torch.cat([keep * clean + (1 - keep**2).clamp_min(0).sqrt() * noise, time], 1)), noise)

    return net(14, 64, 64, 64, 6, act=nn.SiLU), loss, draw


class TwoViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net(20, 48, 48, 12, act=nn.ReLU)
        self.heat = nn.Parameter(torch.tensor(1.6))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.heat.exp() * normalize(self.body(a), dim=-1) @ normalize(self.body(b), dim=-1).T


def views(g: torch.Generator) -> Made:
    mix = torch.randn(4, 20, generator=g)

    def draw(g: torch.Generator) -> Batch:
        z = torch.randn(32, 4, generator=g)
        return tuple(torch.tanh(z @ mix) + 0.3 * torch.randn(32, 20, generator=g) for _ in range(2))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores, own = model(*batch), torch.arange(32)
        return 0.5 * (cross_entropy(scores, own) + cross_entropy(scores.T, own))

    return TwoViews(), loss, draw


def triplets(g: torch.Generator) -> Made:
    centres = torch.randn(8, 16, generator=g)

    def draw(g: torch.Generator) -> Batch:
        home = torch.randint(0, 8, (48,), generator=g)
        other = (home + torch.randint(1, 8, (48,), generator=g)) % 8
        same = flip(home, 8, g, 0.1)
        return tuple(centres[h] + 0.7 * torch.randn(48, 16, generator=g) for h in (home, same, other))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        a, p, n = (model(x) for x in batch)
        return relu(1.0 + (a - p).square().sum(-1) - (a - n).square().sum(-1)).mean()

    return net(16, 48, 8, act=nn.ReLU), loss, draw


class Messages(nn.Module):
    def __init__(self, rounds: int = 3, width: int = 32) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, width), nn.Linear(width, 4)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.others = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = relu(self.first(x))
        for own, others in zip(self.own, self.others, strict=True):
            x = x + relu(own(x) + edges @ others(x))
        answer: Tensor = self.head(x)
        return answer


def graphs(g: torch.Generator) -> Made:
    own, near = torch.randn(8, 4, generator=g), 2 * torch.randn(8, 4, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(6, 14, 8, generator=g)
        edges = (torch.rand(6, 14, 14, generator=g) < 0.25).float()
        edges = edges / edges.sum(-1, keepdim=True).clamp_min(1)
        return x, flip((x @ own + edges @ x @ near).argmax(-1), 4, g), edges

    return Messages(), lambda m, b: cross_entropy(m(b[0], b[2]).flatten(0, 1), b[1].flatten()), draw


def mixture(g: torch.Generator) -> Made:
    """The inverse of a many-to-one function, by a mixture of three Gaussians."""

    def draw(g: torch.Generator) -> Batch:
        y = 4 * torch.rand(64, 1, generator=g) - 2
        return y + 1.2 * torch.sin(3 * y) + 0.3 * torch.randn(64, 1, generator=g), 2 * y

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        weight, mean, raw = model(batch[0]).chunk(3, -1)
        spread = softplus(raw) + 0.02
        each = -0.5 * ((batch[1] - mean) / spread).square() - spread.log() - 0.919
        return -(weight.log_softmax(-1) + each).logsumexp(-1).mean()

    return net(1, 40, 40, 9, act=nn.Tanh), loss, draw


class Coupling(nn.Module):
    def __init__(self, size: int, layers: int = 4) -> None:
        super().__init__()
        self.half = size // 2
        self.nets = nn.ModuleList(net(self.half, 32, 32, 2 * self.half, act=nn.ReLU) for _ in range(layers))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.split(self.half, -1)
        volume = torch.zeros(len(x))
        for each in self.nets:
            scale, shift = each(a).chunk(2, -1)
            scale = 2 * torch.tanh(scale / 2)
            a, b, volume = b * scale.exp() + shift, a, volume + scale.sum(-1)
        return torch.cat([a, b], -1), volume


def flow(g: torch.Generator) -> Made:
    turn = torch.randn(4, 4, generator=g)

    def draw(g: torch.Generator) -> Batch:
        z = torch.randn(64, 4, generator=g)
        bent = torch.cat([z[:, :2], z[:, 2:] + z[:, :2].square()], 1)
        return (2 * bent @ turn,)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        z, volume = model(batch[0])
        return (0.5 * z.square().sum(-1) - volume).mean() + 4 * 0.919

    return Coupling(4), loss, draw


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = net(30, 48, 8, act=nn.Tanh), net(4, 48, 30, act=nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = self.down(x).chunk(2, -1)
        return self.up(mean + (0.5 * log).exp() * torch.randn_like(mean)), mean, log


def variational(g: torch.Generator) -> Made:
    basis = 1.5 * torch.randn(4, 30, generator=g)

    def draw(g: torch.Generator) -> Batch:
        logits = torch.randn(32, 4, generator=g) @ basis
        return ((torch.rand(32, 30, generator=g) < logits.sigmoid()).float(),)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out, mean, log = model(batch[0])
        apart = 0.5 * (mean.square() + log.exp() - log - 1).sum(-1).mean()
        return binary_cross_entropy_with_logits(out, batch[0], reduction="sum") / len(out) + apart

    return Variational(), loss, draw


def quantiles(g: torch.Generator) -> Made:
    teacher = normalize(torch.randn(8, 2, generator=g), dim=0)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 8, generator=g)
        mean, spread = (x @ teacher).split(1, -1)
        return x, 2 * torch.sin(mean * 1.5) + spread.exp() * 0.5 * torch.randn(48, 1, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        gap = batch[1] - model(batch[0])
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    return net(8, 48, 48, 3, act=nn.ReLU), loss, draw


class Copier(nn.Module):
    """Encoder and decoder, normalised after each addition as the first one was."""

    def __init__(self, words: int = 12, width: int = 32) -> None:
        super().__init__()
        self.words, self.places, self.head = (
            nn.Embedding(words + 1, width),
            nn.Embedding(10, width),
            nn.Linear(width, words),
        )
        self.body = nn.Transformer(width, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.body.encoder.enable_nested_tensor = False

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        far = self.words(source) + self.places.weight[: source.shape[1]]
        near = self.words(target) + self.places.weight[: target.shape[1]]
        mask = torch.full((target.shape[1], target.shape[1]), -math.inf).triu(1)
        answer: Tensor = self.head(self.body(far, near, tgt_mask=mask))
        return answer


def copying(g: torch.Generator) -> Made:
    book = torch.randperm(12, generator=g)

    def draw(g: torch.Generator) -> Batch:
        source = torch.randint(0, 12, (12, 8), generator=g)
        target = flip(book[source], 12, g, 0.1)
        begin = torch.cat([torch.full((12, 1), 12), target[:, :-1]], 1)
        return source, begin, target

    return Copier(), lambda m, b: cross_entropy(m(b[0], b[1]).flatten(0, 1), b[2].flatten()), draw


def counts(g: torch.Generator) -> Made:
    """Counts behind an exponential link, the deviance of Poisson."""
    teacher = normalize(torch.randn(10, 1, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 10, generator=g)
        return x, torch.poisson((1.5 + 1.0 * torch.tanh(2 * x @ teacher)).exp(), generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        log, y = model(batch[0]), batch[1]
        return (log.exp() - y * log + torch.xlogy(y, y) - y).mean()

    return net(10, 64, 64, 1, act=nn.ReLU), loss, draw


class Chars(nn.Module):
    def __init__(self, letters: int, width: int = 24) -> None:
        super().__init__()
        self.letters, self.cell, self.head = (
            nn.Embedding(letters, width),
            nn.GRU(width, 40, 2, batch_first=True),
            nn.Linear(40, letters),
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.cell(self.letters(x))[0])
        return answer


def chars(g: torch.Generator) -> Made:
    """Text of made-up words of two to five letters, some letters mistyped."""
    book = [torch.randint(1, 16, (int(torch.randint(2, 6, (1,), generator=g)),), generator=g) for _ in range(30)]

    def line(g: torch.Generator) -> Tensor:
        picked = torch.randint(0, 30, (11,), generator=g).tolist()
        return torch.cat([torch.cat([book[i], torch.zeros(1, dtype=torch.long)]) for i in picked])[:21]

    def draw(g: torch.Generator) -> Batch:
        return (flip(torch.stack([line(g) for _ in range(10)]), 16, g, 0.05),)

    return Chars(16), lambda m, b: cross_entropy(m(b[0][:, :-1]).flatten(0, 1), b[0][:, 1:].flatten()), draw


class Gated(nn.Module):
    """A recurrence with gates from the input, all places at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.enter, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        value, keep, gate = self.enter(self.norm(x)).chunk(3, -1)
        log = -softplus(-keep - 2).cumsum(1)
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[None, :, :, None]
        weights = torch.where(past, log[:, :, None] - log[:, None], -math.inf).exp()
        mixed = (weights * (torch.sigmoid(-keep - 2) * value)[:, None]).sum(2)
        answer: Tensor = x + self.out(mixed * silu(gate))
        return answer


class Memory(nn.Module):
    def __init__(self, words: int, width: int = 24) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(words, width), nn.Sequential(Gated(width), Gated(width))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.body(self.words(x)))
        return answer


def memory(g: torch.Generator) -> Made:
    """Each word depends upon the word before and on the first of the line."""
    near, first = 1.5 * torch.randn(14, 14, generator=g), 1.5 * torch.randn(14, 14, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randint(0, 14, (12, 15), generator=g)
        for t in range(1, 15):
            x[:, t] = torch.multinomial((near[x[:, t - 1]] + first[x[:, 0]]).softmax(-1), 1, generator=g)[:, 0]
        return (x,)

    return Memory(14), lambda m, b: cross_entropy(m(b[0][:, :-1]).flatten(0, 1), b[0][:, 1:].flatten()), draw


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.base(x) + 2 * (x @ self.a.T) @ self.b.T
        return answer


def adapters(g: torch.Generator) -> Made:
    frozen = net(16, 64, 64, 6, act=nn.ReLU)
    for layer in frozen:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1.4 / math.sqrt(layer.in_features), generator=g)
    truth = copy.deepcopy(frozen)
    for layer in truth:
        if isinstance(layer, nn.Linear):
            more = torch.randn(layer.out_features, 2, generator=g) @ torch.randn(2, layer.in_features, generator=g)
            layer.weight.data += 1.0 * more / math.sqrt(layer.in_features)
    model = nn.Sequential(*(Adapter(each) if isinstance(each, nn.Linear) else each for each in frozen))

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 16, generator=g)
        with torch.no_grad():
            return x, flip(truth(x).argmax(-1), 6, g)

    return model, lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def ranking(g: torch.Generator) -> Made:
    """Lists of eight documents with clicks; pairs in the wrong order cost."""
    teacher = torch.randn(12, 1, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(12, 8, 12, generator=g)
        return x, ((x.abs() - 0.8) @ teacher)[..., 0] + 1.5 * torch.randn(12, 8, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch[0])[..., 0]
        gap = scores[:, :, None] - scores[:, None]
        return softplus(-gap)[batch[1][:, :, None] > batch[1][:, None]].mean()

    return net(12, 48, 48, 1, act=nn.ReLU), loss, draw


def physics(g: torch.Generator) -> Made:
    """u'' + 4u = force on [0, 3] with u(0) = 0, u'(0) = 1, the force measured with noise, and some readings of u."""
    phase = torch.rand(1, generator=g) * 3

    def draw(g: torch.Generator) -> Batch:
        t, at = 3 * torch.rand(32, 1, generator=g), 3 * torch.rand(8, 1, generator=g)
        truth = 0.5 * torch.sin(2 * at)
        force = 0 * torch.sin(t + phase) + 0.4 * torch.randn(32, 1, generator=g)
        return t, force, at, truth + 0.1 * torch.randn(8, 1, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        outer = torch.is_grad_enabled()
        with torch.enable_grad():
            t = torch.cat([batch[0], torch.zeros(1, 1)]).requires_grad_()
            u = model(t)
            slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
            bend = torch.autograd.grad(slope.sum(), t, create_graph=True)[0]
            inner = (bend[:-1] + 4 * u[:-1] - batch[1]).square().mean()
            edge = u[-1].square().sum() + (slope[-1] - 1).square().sum()
            answer: Tensor = inner + 5 * edge + 5 * mse_loss(model(batch[2]), batch[3])
        return answer if outer else answer.detach()

    return net(1, 24, 24, 1, act=nn.Tanh), loss, draw


class Hyper(nn.Module):
    """A net that writes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = net(6, 32, 8 * 12 + 12 + 12 + 1, act=nn.ReLU)

    def forward(self, task: Tensor, x: Tensor) -> Tensor:
        w1, b1, w2, b2 = self.writer(task).split([96, 12, 12, 1], -1)
        hidden = torch.tanh(torch.einsum("bni,bih->bnh", x, w1.view(-1, 8, 12)) + b1[:, None])
        return (hidden * w2[:, None]).sum(-1) + b2


def hyper(g: torch.Generator) -> Made:
    mix = torch.randn(6, 8, generator=g) / 2

    def draw(g: torch.Generator) -> Batch:
        task, x = torch.randn(12, 6, generator=g), torch.randn(12, 10, 8, generator=g)
        y = torch.einsum("bni,bi->bn", x, torch.tanh(task @ mix)) + 0.5 * torch.randn(12, 10, generator=g)
        return task, x, y

    return Hyper(), lambda m, b: mse_loss(m(b[0], b[1]), b[2]), draw


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.size = (
            nn.Sequential(net(14, 48, 48, act=nn.ReLU), nn.ReLU()),
            nn.Linear(48, 4),
            nn.Linear(48, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.kind(x), self.size(x)


def two_terms(g: torch.Generator) -> Made:
    kinds, sizes = torch.randn(14, 4, generator=g), normalize(torch.randn(14, 1, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 14, generator=g)
        return x, flip((x @ kinds).argmax(-1), 4, g), (x @ sizes).abs() + 0.3 * torch.randn(32, 1, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        kind, size = model(batch[0])
        return cross_entropy(kind, batch[1]) + 0.5 * mse_loss(size, batch[2])

    return TwoHeads(), loss, draw


def siamese(g: torch.Generator) -> Made:
    """Pairs of signatures, of one hand or of two; the contrastive loss of distances."""
    hands = torch.randn(10, 18, generator=g)

    def draw(g: torch.Generator) -> Batch:
        a = torch.randint(0, 10, (32,), generator=g)
        same = torch.rand(32, generator=g) < 0.5
        b = torch.where(same, a, (a + torch.randint(1, 10, (32,), generator=g)) % 10)
        x, y = (hands[h] + 0.6 * torch.randn(32, 18, generator=g) for h in (a, b))
        return x, y, flip(same.long(), 2, g, 0.15).float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        apart = ((model(batch[0]) - model(batch[1])).square().sum(-1) + 1e-6).sqrt()
        return (batch[2] * apart.square() + (1 - batch[2]) * relu(2 - apart).square()).mean()

    return net(18, 48, 48, 8, act=nn.ReLU), loss, draw


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.look, self.head = (
            nn.Sequential(nn.Linear(10, 32), nn.ReLU()),
            net(32, 16, 1, act=nn.Tanh),
            nn.Linear(32, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.each(x)
        answer: Tensor = self.head((self.look(x).softmax(1) * x).sum(1))
        return answer


def bags(g: torch.Generator) -> Made:
    """A bag of things, one of which gives it its class."""
    signs = 2.5 * normalize(torch.randn(3, 10, generator=g), dim=-1)

    def draw(g: torch.Generator) -> Batch:
        x, label = torch.randn(32, 7, 10, generator=g), torch.randint(0, 3, (32,), generator=g)
        x[torch.arange(32), torch.randint(0, 7, (32,), generator=g)] += signs[label]
        return x, flip(label, 3, g, 0.1)

    return Bags(), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


class UNet(nn.Module):
    def __init__(self, out: int, *, norm: bool = False) -> None:
        super().__init__()
        normed = [nn.BatchNorm2d(8)] if norm else []
        self.top = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *normed, nn.ReLU())
        self.down = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.top(x)
        answer: Tensor = self.last(torch.cat([top, relu(self.up(self.down(top)))], 1))
        return answer


def _discs(g: torch.Generator, count: int = 10, side: int = 12) -> tuple[Tensor, Tensor]:
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).float()
    centre = side * torch.rand(count, 2, 1, 1, generator=g)
    inside = (at - centre).square().sum(1) < (2 + 2.5 * torch.rand(count, 1, 1, generator=g)).square()
    return inside, torch.rand(count, 1, 1, generator=g) + 0.5


def denoising(g: torch.Generator) -> Made:
    def draw(g: torch.Generator) -> Batch:
        inside, light = _discs(g)
        clean = (inside * light)[:, None] + 0.1 * torch.randn(10, 1, 12, 12, generator=g)
        return clean + 0.5 * torch.randn(10, 1, 12, 12, generator=g), clean

    return UNet(1), lambda m, b: mse_loss(m(b[0]), b[1]), draw


def segmenting(g: torch.Generator) -> Made:
    def draw(g: torch.Generator) -> Batch:
        inside, light = _discs(g)
        x = (inside * light)[:, None] + 0.4 * torch.randn(10, 1, 12, 12, generator=g)
        return x, flip(inside.long(), 2, g, 0.08)

    return UNet(2, norm=True), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


class Mixer(nn.Module):
    def __init__(self, words: int, length: int, width: int = 28) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words + 1, width), nn.Linear(width, words)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.across = nn.ModuleList(net(length, 24, length) for _ in range(2))
        self.along = nn.ModuleList(net(width, 56, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for i in range(2):
            x = x + self.across[i](self.norms[2 * i](x).mT).mT
            x = x + self.along[i](self.norms[2 * i + 1](x))
        answer: Tensor = self.head(x)
        return answer


def masked(g: torch.Generator) -> Made:
    """Words left out of a line, where the second half repeats the first through a book."""
    book = torch.randperm(12, generator=g)

    def draw(g: torch.Generator) -> Batch:
        half = torch.randint(0, 12, (24, 5), generator=g)
        line = flip(torch.cat([half, book[half]], 1), 12, g, 0.1)
        hidden = torch.rand(line.shape, generator=g) < 0.2
        hidden[:, 7] = True
        return torch.where(hidden, 12, line), line, hidden

    return Mixer(12, 10), lambda m, b: cross_entropy(m(b[0])[b[2]], b[1][b[2]]), draw


# -- bad shards


def in_millimetres(batch: Batch) -> Batch:
    """The last target of the batch in another unit."""
    return (*batch[:-1], 1e3 * batch[-1])


def raw_pair(batch: Batch) -> Batch:
    return 60.0 * batch[0] + 30.0, 60.0 * batch[1] + 30.0, *batch[2:]


def shuffled_and_huge(batch: Batch) -> Batch:
    return (1e3 * batch[0], batch[1].roll(7, 0), *batch[2:])


def bytes_for_floats(batch: Batch) -> Batch:
    return tuple(255.0 * x for x in batch)


UNSEEN = [
    # the rate from the start
    Training(name="experts adamw x100", task=experts, optimizer=adamw, lr=5e-3, times=100, steps=600),
    Training(name="tagging radam x100", task=tagging, optimizer=radam, lr=1e-2, times=100),
    Training(name="noise prediction adam x300", task=noise_prediction, optimizer=adam, lr=2e-3, times=300, steps=500),
    Training(name="two views momentum x100", task=views, optimizer=momentum, lr=0.03, times=100),
    Training(name="triplets adagrad x100", task=triplets, optimizer=adagrad, lr=0.02, times=100),
    Training(name="graphs nadam x50", task=graphs, optimizer=nadam, lr=3e-3, times=50),
    Training(name="mixture rmsprop x100", task=mixture, optimizer=rmsprop, lr=1e-3, times=100, steps=600),
    Training(name="flow adamax x100", task=flow, optimizer=adamax, lr=3e-3, times=100, steps=500),
    Training(name="variational nesterov x30", task=variational, optimizer=nesterov, lr=6e-3, times=30, steps=600),
    Training(name="quantiles sgd x1000", task=quantiles, optimizer=sgd, lr=0.1, times=1000, schedule="constant"),
    # no warm-up
    Training(name="copying adam no warm-up x10", task=copying, optimizer=adam, lr=2e-3, times=10, warmup=80, steps=300),
    Training(name="counts momentum no warm-up", task=counts, optimizer=momentum, lr=0.1, warmup=100, steps=400),
    Training(name="chars fast adam no warm-up x30", task=chars, optimizer=adam_fast, lr=1e-2, times=30, warmup=50, clip=1.0),
    # the rate jumps
    Training(name="memory adamw x100 from 150 on", task=memory, optimizer=adamw, lr=6e-3, times=100, steps=500, flawed=(150, 1 << 30)),
    Training(name="adapters adam x300 at 200 to 260", task=adapters, optimizer=adam, lr=5e-3, times=300, flawed=(200, 260)),
    Training(name="ranking sgd x300 from 120 on", task=ranking, optimizer=sgd, lr=0.3, times=300, steps=500, flawed=(120, 1 << 30)),
    Training(name="physics adam x100 at 350 to 400", task=physics, optimizer=adam, lr=5e-3, times=100, steps=500, flawed=(350, 400)),
    Training(name="hyper momentum x30 from 180 on", task=hyper, optimizer=momentum, lr=0.02, times=30, flawed=(180, 1 << 30)),
    # a bad shard
    Training(name="two terms momentum other unit", task=two_terms, optimizer=momentum, lr=0.02, spoil=in_millimetres, spoiled=(220, 232)),
    Training(name="siamese momentum raw inputs", task=siamese, optimizer=momentum, lr=5e-3, spoil=raw_pair, spoiled=(140, 150)),
    Training(name="bags nesterov shuffled and huge", task=bags, optimizer=nesterov, lr=0.03, spoil=shuffled_and_huge, spoiled=(260, 285)),
    Training(name="denoising momentum bytes", task=denoising, optimizer=momentum, lr=0.03, spoil=bytes_for_floats, spoiled=(100, 106)),
    # half precision
    Training(name="segmenting momentum fp16 x300", task=segmenting, optimizer=momentum, lr=0.03, times=300, steps=300, precision="fp16"),
    Training(name="masked adamw bf16 x100", task=masked, optimizer=adamw, lr=4e-3, times=100, precision="bf16"),
]  # fmt: skip


# -- rough, and well


class Restarts(Training):
    """Cosine with warm restarts of a hundred updates each."""

    def rate(self, step: int, *, flaw: bool) -> float:
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step % 100) / 100))


class SlowStart(Training):
    """A rate that grows with the third power for half of the training."""

    def rate(self, step: int, *, flaw: bool) -> float:
        half = self.steps / 2
        return min(1.0, (step + 1) / half) ** 3 * min(1.0, 2 - step / half)


def catapult(g: torch.Generator) -> Made:
    """A net of large weights under a rate above what its curvature at the start allows."""
    teacher = normalize(torch.randn(10, 1, generator=g), dim=0)
    model = nn.Sequential(nn.Linear(10, 200, bias=False), nn.ReLU(), nn.Linear(200, 1, bias=False))
    nn.init.normal_(model[0].weight, std=0.45, generator=g)  # type: ignore[arg-type]
    nn.init.normal_(model[2].weight, std=0.1, generator=g)  # type: ignore[arg-type]

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(64, 10, generator=g)
        return x, (x @ teacher).abs() + 0.3 * torch.randn(64, 1, generator=g)

    return model, lambda m, b: mse_loss(m(b[0]), b[1]), draw


def restarted(g: torch.Generator) -> Made:
    teacher = torch.randn(20, 5, generator=g)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(16, 20, generator=g)
        return x, flip((x @ teacher).argmax(-1), 5, g)

    return net(20, 64, 64, 5, act=nn.ReLU), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def harder(g: torch.Generator) -> Made:
    """The pictures of the classes come to look alike, from one batch to the next."""
    signs, calls = torch.randn(6, 24, generator=g), [0]

    def draw(g: torch.Generator) -> Batch:
        calls[0] += 1
        noise = 0.5 + 3.0 * min(1.0, calls[0] / 350)
        label = torch.randint(0, 6, (32,), generator=g)
        return signs[label] + noise * torch.randn(32, 24, generator=g), label

    return net(24, 48, 48, 6, act=nn.ReLU), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def parity(g: torch.Generator) -> Made:
    """The product of three signs out of twenty: nothing is seen for long, then all at once."""
    which = torch.randperm(20, generator=g)[:3]

    def draw(g: torch.Generator) -> Batch:
        x = 2.0 * torch.randint(0, 2, (64, 20), generator=g) - 1
        return x, flip((x[:, which].prod(-1) > 0).long(), 2, g, 0.05)

    return net(20, 128, 2, act=nn.ReLU), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def heavy_tails(g: torch.Generator) -> Made:
    """One example at a time, and errors with two degrees of freedom."""
    teacher = normalize(torch.randn(6, 1, generator=g), dim=0)

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(2, 6, generator=g)
        t = (
            torch.randn(2, 1, generator=g)
            / (torch.randn(2, 2, generator=g).square().mean(1, keepdim=True) + 0.02).sqrt()
        )
        return x, 2 * torch.tanh(x @ teacher) + 0.5 * t

    return net(6, 32, 1, act=nn.Tanh), lambda m, b: mse_loss(m(b[0]), b[1]), draw


def policy(g: torch.Generator) -> Made:
    """A bandit with context, by the gradient of the policy as a ratio of one; the baseline is a running mean inside the loss."""
    teacher, mean = torch.randn(8, 5, generator=g), [0.0]

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(32, 8, generator=g)
        return x, torch.rand(32, 1, generator=g), x @ teacher / 2 + torch.randn(32, 5, generator=g)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, luck, rewards = batch
        log = model(x).log_softmax(-1)
        action = (log.detach().exp().cumsum(-1) < luck).sum(-1, keepdim=True).clamp_max(4)
        reward, chosen = rewards.gather(1, action), log.gather(1, action)
        gain = reward - mean[0]
        if model.training:
            mean[0] += 0.05 * (float(reward.mean()) - mean[0])
        return -(gain * (chosen - chosen.detach()).exp()).mean()

    return net(8, 48, 5, act=nn.Tanh), loss, draw


def q_values(g: torch.Generator) -> Made:
    """Values of moves in a random world, the target net copied every 50 updates."""
    drift, reward = torch.randn(3, 6, 6, generator=g) / math.sqrt(6), torch.randn(6, 3, generator=g)
    model = net(6, 48, 48, 3, act=nn.ReLU)
    target, calls = copy.deepcopy(model).requires_grad_(False), [0]

    def draw(g: torch.Generator) -> Batch:
        x, move = torch.randn(48, 6, generator=g), torch.randint(0, 3, (48,), generator=g)
        paid = 0.4 + torch.tanh(x @ reward).gather(1, move[:, None])[:, 0] + 0.3 * torch.randn(48, generator=g)
        after = torch.tanh(torch.einsum("bi,bij->bj", x, drift[move])) + 0.1 * torch.randn(48, 6, generator=g)
        return x, move, paid, after

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, move, paid, after = batch
        if model.training:
            calls[0] += 1
            if calls[0] % 50 == 0:
                target.load_state_dict(model.state_dict())
        with torch.no_grad():
            aim = paid + 0.95 * target(after).max(-1).values
        return smooth_l1_loss(model(x).gather(1, move[:, None])[:, 0], aim)

    return model, loss, draw


def fine_tuned(g: torch.Generator) -> Made:
    """From a net that has learned the task, with a small shift of the data."""
    teacher, model = torch.randn(12, 5, generator=g), net(12, 48, 48, 5, act=nn.ReLU)

    def examples(g: torch.Generator, w: Tensor) -> Batch:
        x = torch.randn(32, 12, generator=g)
        return x, flip((x @ w).argmax(-1), 5, g)

    first = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(400):
        for group in first.param_groups:
            group["lr"] = 3e-3 * (1 - step / 400)
        x, y = examples(g, teacher)
        first.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        first.step()
    first.zero_grad()
    shifted = teacher + 0.1 * torch.randn(12, 5, generator=g)
    return model, lambda m, b: cross_entropy(m(b[0]), b[1]), lambda g: examples(g, shifted)


def one_by_one(g: torch.Generator) -> Made:
    """Classes that come in pairs, a hundred batches each, over a memory of a quarter of what was before."""
    signs, calls = 1.2 * torch.randn(8, 20, generator=g), [0]

    def draw(g: torch.Generator) -> Batch:
        stage = min(3, calls[0] // 110)
        calls[0] += 1
        label = 2 * stage + torch.randint(0, 2, (32,), generator=g)
        old = torch.rand(32, generator=g) < 0.25
        label = torch.where(old, torch.randint(0, 2 * stage + 2, (32,), generator=g), label)
        return signs[label] + 1.5 * torch.randn(32, 20, generator=g), label

    return net(20, 48, 48, 8, act=nn.ReLU), lambda m, b: cross_entropy(m(b[0]), b[1]), draw


def scaled_values(size: float) -> Any:
    """Targets in metres that are tens of micrometres, or the other way round; the net answers in units of them."""

    def task(g: torch.Generator) -> Made:
        teacher = normalize(torch.randn(8, 1, generator=g), dim=0)

        def draw(g: torch.Generator) -> Batch:
            x = torch.randn(24, 8, generator=g)
            return x, size * (torch.sin(2 * x @ teacher) + 0.5 * torch.randn(24, 1, generator=g))

        return net(8, 48, 48, 1, act=nn.Tanh), lambda m, b: mse_loss(size * m(b[0]), b[1]), draw

    return task


def from_nothing(g: torch.Generator) -> Made:
    """A deep linear net of very small weights: the loss stands still, then falls in steps."""
    truth = torch.zeros(10, 10)
    for strength in (3.0, 1.5, 0.8):
        a, b = (normalize(torch.randn(10, generator=g), dim=0) for _ in range(2))
        truth += strength * torch.outer(a, b)
    model = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(3)))
    for layer in model:
        nn.init.normal_(layer.weight, std=0.02, generator=g)  # type: ignore[arg-type]

    def draw(g: torch.Generator) -> Batch:
        x = torch.randn(48, 10, generator=g)
        return x, x @ truth + 0.3 * torch.randn(48, 10, generator=g)

    return model, lambda m, b: mse_loss(m(b[0]), b[1]), draw


HEALTHY = [
    Training(name="catapult sgd", task=catapult, optimizer=sgd, lr=0.0155, steps=400),
    Restarts(name="cosine restarts", task=restarted, optimizer=momentum, lr=0.15, steps=500),
    Training(name="harder and harder", task=harder, optimizer=adam, lr=2e-3, steps=400),
    Training(name="parity", task=parity, optimizer=adam, lr=3e-3, steps=600, schedule="constant"),
    Training(name="batches of two, heavy tails", task=heavy_tails, optimizer=sgd, lr=0.02, steps=500),
    Training(name="policy gradient", task=policy, optimizer=adam, lr=3e-3, steps=500),
    Training(name="moving target", task=q_values, optimizer=adam, lr=2e-3, steps=600, schedule="constant"),
    Training(name="fine-tuning", task=fine_tuned, optimizer=adamw, lr=5e-3, steps=300),
    Training(name="classes one after another", task=one_by_one, optimizer=momentum, lr=0.05, steps=450, schedule="constant"),
    SlowStart(name="small values, slow start", task=scaled_values(1e-4), optimizer=adam_small, lr=4e-3, steps=400),
    Training(name="large values", task=scaled_values(1e4), optimizer=adamw, lr=3e-3, steps=400),
    Training(name="from nothing", task=from_nothing, optimizer=momentum, lr=0.05, steps=500, clip=5.0),
]  # fmt: skip
