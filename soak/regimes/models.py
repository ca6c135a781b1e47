"""Regimes whose model is rough: adversaries, idle experts, layers that are dropped, frozen, pruned or replaced."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from ..blocks import SYMBOLS, classified, counting, cross_entropy, endless, next_symbol_loss, perceptron, squared_error
from ..training import Player, Training, seeded, single


def _ring(g: torch.Generator, rows: int) -> Tensor:
    angles = 6.2832 * torch.rand(rows, generator=g)
    return torch.stack([angles.cos(), angles.sin()], 1) * 2 + 0.1 * torch.randn(rows, 2, generator=g)


def adversarial_pair(seed: int) -> Training:
    """A GAN: discriminator and generator in turn, each with an optimizer; neither loss converges."""
    g = seeded(seed)
    maker, judge = perceptron(4, 24, 2, between=nn.ReLU), perceptron(2, 24, 1, between=nn.ReLU)

    def judge_loss(judge: nn.Module, batch: Any) -> Tensor:
        real, noise = batch
        with torch.no_grad():
            made = maker(noise)
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    def maker_loss(maker: nn.Module, batch: Any) -> Tensor:
        judge.requires_grad_(False)
        loss = F.softplus(-judge(maker(batch[1]))).mean()
        judge.requires_grad_(True)
        return loss

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.5, 0.9))

    players = [
        Player(model=judge, optimizers=[adam(judge)], loss=judge_loss),
        Player(model=maker, optimizers=[adam(maker)], loss=maker_loss),
    ]
    batches = endless(lambda k: (_ring(g, 16), torch.randn(16, 4, generator=g)))
    return Training(players=players, batches=batches, turn=lambda k: k % 2)


def unbounded_critic(seed: int) -> Training:
    """A Wasserstein critic with gradient penalty and spectral norm, five updates to the generator's one."""
    g = seeded(seed)
    maker = perceptron(4, 24, 2, between=nn.ReLU)
    critic = nn.Sequential(spectral_norm(nn.Linear(2, 24)), nn.LeakyReLU(0.2), nn.Linear(24, 1))

    def critic_loss(critic: nn.Module, batch: Any) -> Tensor:
        real, noise = batch
        with torch.no_grad():
            made = maker(noise)
        between = (real + torch.rand(len(real), 1) * (made - real)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        gap = 20 * (critic(made).mean() - critic(real).mean())
        return gap + (slope.norm(dim=1) - 1).square().mean()

    def maker_loss(maker: nn.Module, batch: Any) -> Tensor:
        critic.requires_grad_(False)
        loss = -20 * critic(maker(batch[1])).mean()
        critic.requires_grad_(True)
        return loss

    players = [
        Player(
            model=critic, optimizers=[torch.optim.RMSprop(critic.parameters(), lr=2e-3)], loss=critic_loss, clip=10.0
        ),
        Player(model=maker, optimizers=[torch.optim.RMSprop(maker.parameters(), lr=1e-3)], loss=maker_loss, clip=10.0),
    ]
    batches = endless(lambda k: (_ring(g, 12), torch.randn(12, 4, generator=g)))
    return Training(players=players, batches=batches, turn=lambda k: int(k % 6 == 5))


class _Experts(nn.Module):
    """Top-1 routing; an expert that no row chose takes no part, so its gradient is None."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(perceptron(8, 12, 3) for _ in range(4))

    def forward(self, points: Tensor) -> Tensor:
        shares = self.router(points).softmax(-1)
        share, chosen = shares.max(-1)
        out = points.new_zeros(len(points), 3)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, share[rows, None] * expert(points[rows]))
        return out


def idle_experts(seed: int) -> Training:
    """A mixture of experts; which expert is used follows the data, and some wait for hundreds of updates."""
    g, model = seeded(seed), _Experts()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points, labels = classified(g, 12, 8, 3)
        points[:, 3 + k // 70 % 5] += 4.0
        return points, labels

    return single(model, torch.optim.AdamW(model.parameters(), lr=5e-3), cross_entropy, endless(batch), clip=1.0)


def tiny_norm_batches(seed: int) -> Training:
    """Batch norm over two rows at a time, sometimes two nearly equal ones: outputs and running variance jump."""
    g = seeded(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=0.3), nn.ReLU(), nn.Linear(16, 1))

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(2, 6, generator=g)
        if k % 11 == 10:
            points[1] = points[0] + 1e-4 * points[1]
        return points * (10.0 if k % 29 == 28 else 1.0), points.sum(1, keepdim=True)

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-3), squared_error, endless(batch))


class _DroppedBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.4)) for _ in range(3))

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.first(points)
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.6:
                hidden = hidden + block(hidden)
        return self.last(hidden)


def dropped_layers(seed: int) -> Training:
    """Dropout and whole layers left out at random: parameters without a gradient in many updates."""
    g, model = seeded(seed), _DroppedBlocks()
    batches = endless(lambda k: classified(g, 12, 8, 4))
    return single(model, torch.optim.AdamW(model.parameters(), lr=3e-3), cross_entropy, batches, clip=1.0)


class _Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Dropout(0.3))
        self.second = nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU(), nn.Dropout(0.3))
        self.last = nn.Linear(24, 4)

    def forward(self, points: Tensor) -> Tensor:
        hidden = checkpoint(self.first, points, use_reentrant=False)
        return self.last(checkpoint(self.second, hidden, use_reentrant=False))


def recomputed_layers(seed: int) -> Training:
    """Activation checkpointing with dropout: the backward pass runs the forward pass again with the same numbers."""
    g, model = seeded(seed), _Recomputed()
    batches = endless(lambda k: classified(g, 12, 8, 4))
    return single(model, torch.optim.AdamW(model.parameters(), lr=4e-3), cross_entropy, batches, clip=1.0)


def gradual_unfreezing(seed: int) -> Training:
    """All but the head is frozen at first; a layer is unfrozen every 70 updates, the last one first."""
    g, model = seeded(seed), perceptron(8, 24, 24, 24, 4, between=nn.ReLU)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer in layers[:-1]:
        layer.requires_grad_(False)

    def before(step: int) -> None:
        if step % 70 == 69 and step // 70 < len(layers) - 1:
            layers[len(layers) - 2 - step // 70].requires_grad_(True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    batches = endless(lambda k: classified(g, 16, 8, 4))
    return single(model, optimizer, cross_entropy, batches, clip=1.0, before=before)


def added_groups(seed: int) -> Training:
    """Parameter groups with a rate of their own are added while it runs, and one group's rate is set to zero."""
    g, model = seeded(seed), perceptron(8, 24, 24, 4, between=nn.ReLU)
    first, second, last = (layer for layer in model if isinstance(layer, nn.Linear))
    first.requires_grad_(False)
    second.requires_grad_(False)
    optimizer = torch.optim.SGD(last.parameters(), lr=0.1, momentum=0.9)

    def before(step: int) -> None:
        if step in (60, 150):
            layer = second if step == 60 else first
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.3})
        if step >= 200:
            optimizer.param_groups[0]["lr"] = 0.0 if step // 50 % 2 else 0.1

    batches = endless(lambda k: classified(g, 16, 8, 4))
    return single(model, optimizer, cross_entropy, batches, clip=1.0, before=before)


def pruned_rounds(seed: int) -> Training:
    """Lottery tickets: every 100 updates a fifth of the weights is set to zero for good and the rest rewound."""
    g, model = seeded(seed), perceptron(8, 32, 4, between=nn.ReLU)
    weights = [p for p in model.parameters() if p.dim() == 2]
    start = [p.detach().clone() for p in weights]
    masks = [torch.ones_like(p) for p in weights]

    def after(step: int) -> None:
        with torch.no_grad():
            for weight, first, mask in zip(weights, start, masks, strict=True):
                if step % 100 == 99 and step < 1000:
                    alive = weight.abs()[mask > 0]
                    mask.mul_((weight.abs() > alive.quantile(0.2)).float())
                    weight.copy_(first)
                weight.mul_(mask)

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return single(model, optimizer, cross_entropy, endless(lambda k: classified(g, 16, 8, 4)), after=after)


def fresh_heads(seed: int) -> Training:
    """The head is drawn anew every 120 updates, with weights ten times as large, and its moments are dropped."""
    g, model = seeded(seed), perceptron(8, 24, 5, between=nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    draws = torch.Generator().manual_seed(seed + 5)

    def before(step: int) -> None:
        if step % 120 == 119:
            with torch.no_grad():
                model[2].weight.copy_(2 * torch.randn(5, 24, generator=draws))
                model[2].bias.zero_()
            for parameter in model[2].parameters():
                optimizer.state.pop(parameter, None)

    return single(model, optimizer, cross_entropy, endless(lambda k: classified(g, 16, 8, 5)), before=before)


class _Tied(nn.Module):
    """A two-layer causal transformer whose table is its head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(SYMBOLS, 16), nn.Embedding(16, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, SYMBOLS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, symbols: Tensor) -> Tensor:
        length = symbols.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        return self.head(self.layer(self.table(symbols) + self.places.weight[:length], src_mask=mask))


def tied_transformer(seed: int) -> Training:
    """A transformer with tied weights and an attention mask of minus infinities; one batch in 60 is pure noise."""
    g, model = seeded(seed), _Tied()

    def batch(k: int) -> Tensor:
        return counting(g, 4, 10, errors=1.0 if k % 60 == 59 else 0.0)

    return single(model, torch.optim.AdamW(model.parameters(), lr=5e-3), next_symbol_loss, endless(batch), clip=1.0)


class _Waves(nn.Module):
    """Complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(6, 6, dtype=torch.complex64))

    def forward(self, waves: Tensor) -> Tensor:
        return waves @ self.weight


def complex_weights(seed: int) -> Training:
    """A complex matrix learns a rotation that is replaced every 110 updates."""
    g, model = seeded(seed), _Waves()
    turns = [torch.linalg.qr(torch.randn(6, 6, dtype=torch.complex64, generator=g))[0] for _ in range(3)]

    def batch(k: int) -> tuple[Tensor, Tensor]:
        waves = torch.randn(12, 6, dtype=torch.complex64, generator=g)
        return waves, waves @ turns[k // 110 % 3]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        waves, wanted = batch
        return (model(waves) - wanted).abs().square().mean()

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-2), loss, endless(batch))
