"""What programs write into their weights and moments between two updates, each in the way it is usually written."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 24


class Small(nn.Module):
    """Tensors of many sizes: a single scale, a norm of eight, a row of an embedding no longer than a warp."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.body, self.head = nn.Linear(8, 48), nn.Linear(48, 5)
        self.scale = nn.Parameter(torch.tensor([4.6]))

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.tanh(self.body(self.norm(self.embed(tokens).mean(1))))) * self.scale
        return answer


def make(optimizer: str = "adam") -> tuple[Small, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Small()
    if optimizer == "adam":
        return model, torch.optim.Adam(model.parameters(), lr=3e-2)
    return model, torch.optim.SGD(model.parameters(), lr=3e-2, momentum=0.9)


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        tokens = torch.randint(12, (16, 6), generator=draw)
        made.append((tokens, tokens.sum(1) % 5))
    return made


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Average:
    """A moving average that is swapped in for one step and out after it."""

    kept: list[Tensor] | None = None

    def swap(self, model: Small, *, raw: bool) -> None:
        if self.kept is None:
            self.kept = [p.detach().clone() * 0.9 for p in model.parameters()]
        with torch.no_grad():
            for p, other in zip(model.parameters(), self.kept, strict=True):
                here = p.data if raw else p
                before = here.clone()
                here.copy_(other)
                other.copy_(before)


def _moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor) and v.dim()]


def _clamp_no_grad(model: Small, _: Any, __: Average) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.35, 0.35)


def _one_clamped(model: Small, _: Any, __: Average) -> None:
    """Only the largest of them is beyond the limit."""
    flat = model.body.weight.data.view(-1)
    flat.clamp_(max=float(flat.abs().sort().values[-2]) + 1e-4)


def _prune(model: Small, _: Any, __: Average) -> None:
    for p in model.parameters():
        p.data.mul_(p.data.abs() > 0.02)


def _prune_one(model: Small, _: Any, __: Average) -> None:
    flat = model.body.weight.data.view(-1)
    flat[flat.abs().argmin()] = 0.0


def _through_numpy(model: Small, _: Any, __: Average) -> None:
    model.head.bias.detach().numpy()[:] *= 0.99


def _other_memory(model: Small, _: Any, __: Average) -> None:
    model.body.weight.data = model.body.weight.data.clone() * 0.5


def _moment_zeroed(_: Small, optimizer: torch.optim.Optimizer, __: Average) -> None:
    for moment in _moments(optimizer):
        moment.data.zero_()


def _moment_scaled(_: Small, optimizer: torch.optim.Optimizer, __: Average) -> None:
    _moments(optimizer)[0].data.mul_(0.5)


def _load(model: Small, optimizer: torch.optim.Optimizer, _: Average) -> None:
    weights = {name: value * 0.9 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _set(change: Callable[[Small], Any]) -> Callable[[Small, Any, Average], None]:
    return lambda model, _, __: change(model)


WRITES: dict[str, Callable[[Small, torch.optim.Optimizer, Average], Any]] = {
    "average swapped in": lambda model, _, average: average.swap(model, raw=False),
    "average swapped in past autograd": lambda model, _, average: average.swap(model, raw=True),
    "clamped": _clamp_no_grad,
    "clamped past autograd": _set(lambda m: [p.data.clamp_(-0.35, 0.35) for p in m.parameters()]),
    "one weight clamped": _one_clamped,
    "a scale clamped": _set(lambda m: m.scale.data.clamp_(0.0, math.log(100))),
    "a scale set": _set(lambda m: m.scale.data.fill_(2.7182817)),
    "a scale computed": _set(lambda m: m.scale.data.copy_(m.body.weight.data.norm() * 0.7)),
    "loaded": _load,
    "one layer made anew": _set(lambda m: m.head.reset_parameters()),
    "one row made anew": _set(lambda m: m.embed.weight.data[3].normal_(0, 3.0)),
    "one row zeroed": _set(lambda m: m.embed.weight.data[0].zero_()),
    "one row copied": _set(lambda m: m.embed.weight.data[5].copy_(m.embed.weight.data[7])),
    "pruned": _prune,
    "one weight pruned": _prune_one,
    "one bias far away": _set(lambda m: m.head.bias.data.__setitem__(4, -1e4)),
    "one bias at the end of the range": _set(lambda m: m.head.bias.data.__setitem__(4, torch.finfo(torch.float16).min)),
    "noise added": _set(lambda m: [p.data.add_(torch.randn_like(p), alpha=0.01) for p in m.parameters()]),
    "a norm halved": _set(lambda m: m.norm.weight.data.mul_(0.5)),
    "a norm doubled": _set(lambda m: m.norm.weight.data.mul_(2.0)),
    "a norm negated": _set(lambda m: m.norm.weight.data.neg_()),
    "rounded": _set(lambda m: m.body.weight.data.copy_((m.body.weight.data * 64).round() / 64)),
    "lengths limited": _set(lambda m: m.embed.weight.data.copy_(m.embed.weight.data.renorm(2, 0, 1.0))),
    "through numpy": _through_numpy,
    "other memory": _other_memory,
    "tied": _set(lambda m: m.head.weight.data[:, :8].copy_(m.embed.weight.data[:5])),
    "moments zeroed": _moment_zeroed,
    "one moment halved": _moment_scaled,
    "memory shared": _set(lambda m: (m.share_memory(), m.head.bias.data.view(-1)[1:].mul_(0.0625))),
    "a norm divided by 64": _set(lambda m: m.norm.weight.data.div_(64.0)),
}


def write(name: str, model: Small, optimizer: torch.optim.Optimizer, average: Average, step: int) -> None:
    """What the program writes before this step."""
    if step >= 3 and step % 3 == 0:
        WRITES[name](model, optimizer, average)


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
    tensors = [*model.state_dict().values(), *_moments(optimizer)]
    return [t.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]
