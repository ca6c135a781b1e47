"""Small healthy trainings of many kinds: nothing may be reported about any of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

ROWS, WORDS, LENGTH, WIDTH = 12, 24, 10, 16


@dataclass
class Healthy:
    """A model, what it is trained with, a batch and its loss."""

    model: nn.Module
    batch: Any
    loss: Callable[[nn.Module, Any], Tensor]
    optimizers: list[Optimizer] = field(default_factory=list)

    def __post_init__(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizers = self.optimizers or [torch.optim.AdamW(trained, lr=1e-3)]

    def step(self) -> Tensor:
        """One ordinary step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(self.model, self.batch)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()


class Parts(nn.ModuleDict):
    """Modules by name; what is done with them is in the loss."""


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(sizes):
        layers += [nn.Linear(one, other), act()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, causal: bool, width: int = WIDTH, crossed: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.norm, self.q, self.kv = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out, self.crossed = nn.Linear(width, width), crossed
        self.ffn = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attend(self, x: Tensor, memory: Tensor, keep: Tensor | None = None) -> Tensor:
        q, (k, v) = self.q(x), self.kv(memory).chunk(2, -1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -1e9)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, :], -1e9)
        return self.out(scores.softmax(-1) @ v)

    def forward(self, x: Tensor, memory: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        x = x + self.attend(normed, normed if memory is None else memory, keep)
        return x + self.ffn(x)


class Transformer(nn.Module):
    def __init__(self, causal: bool, depth: int = 2, words: int = WORDS) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(causal) for _ in range(depth))
        self.head = nn.Linear(WIDTH, words)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, keep=keep)
        return self.head(x)


def tokens(rows: int = ROWS, length: int = LENGTH, first: int = 2) -> Tensor:
    return torch.randint(first, WORDS, (rows, length))


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)


def convolutional() -> Healthy:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 5),
    )  # fmt: skip
    batch = (torch.randn(ROWS, 3, 8, 8), torch.randint(0, 5, (ROWS,)))
    return Healthy(model, batch, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


def adversarial() -> Healthy:
    model = Parts({"generator": mlp(8, 32, 24), "critic": mlp(24, 32, 1)})
    optimizers: list[Optimizer] = [torch.optim.Adam(each.parameters(), lr=2e-4) for each in model.values()]

    def loss(m: Any, batch: Tensor) -> Tensor:
        made = torch.tanh(m["generator"](torch.randn(len(batch), 8)))
        return F.softplus(-m["critic"](made)).mean() + F.softplus(m["critic"](batch)).mean() * 0

    return Healthy(model, torch.rand(ROWS, 24) * 2 - 1, loss, optimizers)


def variational() -> Healthy:
    model = Parts({"encoder": mlp(20, 32, 16), "decoder": mlp(8, 32, 20)})

    def loss(m: Any, x: Tensor) -> Tensor:
        mean, log_variance = m["encoder"](x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        return F.binary_cross_entropy_with_logits(m["decoder"](z), x) + 0.01 * kl

    return Healthy(model, torch.rand(ROWS, 20), loss)


def proximal_policy() -> Healthy:
    model = Parts({"policy": mlp(6, 32, 4, act=nn.Tanh), "value": mlp(6, 32, 1, act=nn.Tanh)})

    def loss(m: Any, b: Any) -> Tensor:
        log_probability = torch.log_softmax(m["policy"](b["state"]), -1)
        chosen = log_probability.gather(1, b["action"][:, None]).squeeze(1)
        ratio = (chosen - b["old"]).exp()
        gain = torch.min(ratio * b["advantage"], ratio.clamp(0.8, 1.2) * b["advantage"]).mean()
        value = F.mse_loss(m["value"](b["state"]).squeeze(-1), b["return"])
        return -gain + 0.5 * value - 0.01 * -(log_probability.exp() * log_probability).sum(-1).mean()

    batch = {
        "state": torch.randn(ROWS, 6), "action": torch.randint(0, 4, (ROWS,)), "old": -torch.rand(ROWS) - 1,
        "advantage": torch.randn(ROWS), "return": torch.randn(ROWS),
    }  # fmt: skip
    return Healthy(model, batch, loss)


def contrastive() -> Healthy:
    model = Parts({"encoder": mlp(12, 32, 16)})

    def loss(m: Any, b: Any) -> Tensor:
        one, other = (F.normalize(m["encoder"](each), dim=-1) for each in b)
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))

    x = torch.randn(ROWS, 12)
    return Healthy(model, (x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)), loss)


def masked_language_model() -> Healthy:
    ids = tokens()
    hidden = torch.rand(ids.shape) < 0.3
    hidden[:, 0] = True
    batch = {"ids": ids.masked_fill(hidden, 1), "labels": ids.masked_fill(~hidden, -100)}
    return Healthy(Transformer(causal=False), batch, lambda m, b: token_loss(m(b["ids"]), b["labels"]))


def causal_language_model() -> Healthy:
    def loss(m: nn.Module, b: Any) -> Tensor:
        return token_loss(m(b["ids"])[:, :-1], b["labels"][:, 1:])

    ids = tokens()
    return Healthy(Transformer(causal=True), {"ids": ids, "labels": ids.clone()}, loss)


def next_token_pairs() -> Healthy:
    """Inputs and targets as data loaders of the nanoGPT kind give them."""
    text = tokens(length=LENGTH + 1)
    batch = (text[:, :-1].clone(), text[:, 1:].clone())
    return Healthy(Transformer(causal=True), batch, lambda m, b: token_loss(m(b[0]), b[1]))


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder = Block(causal=False), Block(causal=True)
        self.cross, self.head = Block(causal=False, crossed=True), nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        memory = self.encoder(self.source(source))
        return self.head(self.cross(self.decoder(self.target(before)), memory))


def sequence_to_sequence() -> Healthy:
    target = tokens()
    before = torch.cat([torch.ones(ROWS, 1, dtype=torch.long), target[:, :-1]], 1)
    batch = {"source": tokens(), "before": before, "target": target}
    return Healthy(Translator(), batch, lambda m, b: token_loss(m(b["source"], b["before"]), b["target"]))


class Graphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            h = layer(x)
            x = torch.relu(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))
        return self.head(x)


def graph_network() -> Healthy:
    batch = {"x": torch.randn(30, 8), "edges": torch.randint(0, 30, (2, 80)), "y": torch.randint(0, 3, (30,))}
    return Healthy(Graphs(), batch, lambda m, b: F.cross_entropy(m(b["x"], b["edges"]), b["y"]))


def sparse_autoencoder() -> Healthy:
    """A dictionary of 512 features of which each row uses a few."""
    model = Parts({"encoder": nn.Linear(16, 512), "decoder": nn.Linear(512, 16)})
    with torch.no_grad():
        model["encoder"].bias.fill_(-1.4)

    def loss(m: Any, x: Tensor) -> Tensor:
        features = torch.relu(m["encoder"](x))
        return F.mse_loss(m["decoder"](features), x) + 1e-4 * features.sum(-1).mean()

    return Healthy(model, torch.randn(ROWS, 16), loss)


def warmup_from_zero() -> Healthy:
    model = mlp(12, 32, 32, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer.param_groups[0].update(lr=0.0, initial_lr=1e-2)
    batch = {"x": torch.randn(16, 12), "y": torch.randint(0, 4, (16,))}
    return Healthy(model, batch, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), [optimizer])


def frozen_teacher() -> Healthy:
    """The teacher is a frozen part of the model, in no optimizer; a layer of the student is frozen for a while."""
    model = Parts({"student": mlp(12, 16, 16, 4), "teacher": mlp(12, 32, 32, 4)})
    model["teacher"].requires_grad_(False).eval()
    model["student"][0].requires_grad_(False)

    def loss(m: Any, b: Any) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(m["teacher"](b["x"]), -1)
        logits = m["student"](b["x"])
        return F.kl_div(F.log_softmax(logits, -1), wanted, reduction="batchmean") + F.cross_entropy(logits, b["y"])

    return Healthy(model, {"x": torch.randn(16, 12), "y": torch.randint(0, 4, (16,))}, loss)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(12, 4), nn.ModuleList(mlp(12, 16, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = torch.softmax(self.router(x), -1).max(-1)
        out = torch.zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, gate[rows, None] * expert(x[rows]))
        return out


def unused_experts() -> Healthy:
    batch = {"x": torch.randn(6, 12), "y": torch.randint(0, 4, (6,))}
    return Healthy(Experts(), batch, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]))


ALL: dict[str, Callable[[], Healthy]] = {
    make.__name__: make
    for make in (
        convolutional, adversarial, variational, proximal_policy, contrastive, masked_language_model,
        causal_language_model, next_token_pairs, sequence_to_sequence, graph_network, sparse_autoencoder,
        warmup_from_zero, frozen_teacher, unused_experts,
    )
}  # fmt: skip
