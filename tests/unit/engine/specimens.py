"""Small real training set-ups, and comparing two of them bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import steadygrad as sg
from steadygrad import Policy

# No ladder: these tests are about a skip leaving no trace, and a climbed rung is a trace that is wanted.
SKIP_ONLY = Policy.named("balanced").but(
    escalation=(), skip_streak_halt=10_000, skips_per_window=(10_000, 200), refuse_spikes=True
)


class Net(nn.Module):
    """Everything a forward can move: running statistics, spectral norm's vectors, dropout, a counter, three RNGs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.25)
        self.second = spectral_norm(nn.Linear(16, 16))
        self.head = nn.Linear(16, 1)
        self.calls = 0
        self.plain_tensor = torch.zeros(3)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.plain_tensor = self.plain_tensor * 0.9 + x.detach().mean()
        self.scratch += x.detach().mean()
        x = x * (1 + 0.01 * random.random()) + 0.01 * float(np.random.rand())
        return self.head(torch.tanh(self.second(self.drop(torch.relu(self.norm(self.first(x)))))))


@dataclass
class Setup:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    ema: AveragedModel
    loss_fn: Callable[[nn.Module, Tensor], Tensor]


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch[:, :8]) - batch[:, 8:]).pow(2).mean()


def setup(make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = None) -> Setup:
    torch.manual_seed(0)
    model = Net()
    make = make_optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True))
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    return Setup(model, optimizer, scheduler, ema, loss_fn)


def batches(count: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, 9, generator=generator) for _ in range(count)]


def run_plain(data: Sequence[Tensor], *, accumulate: int = 1, clip: float | None = 1.0, **kw: Any) -> Setup:
    """The loop everybody writes."""
    it = setup(**kw)
    for index, batch in enumerate(data):
        loss = it.loss_fn(it.model, batch)
        (loss / accumulate if accumulate > 1 else loss).backward()
        if (index + 1) % accumulate:
            continue
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(it.model.parameters(), clip)
        it.optimizer.step()
        it.scheduler.step()
        it.ema.update_parameters(it.model)
        it.optimizer.zero_grad()
    return it


def run_guarded(data: Sequence[Tensor], *, clip_norm: float | None = 1.0, make: Any = None, **options: Any) -> Setup:
    it = setup(make)
    options.setdefault("policy", SKIP_ONLY)
    options.setdefault("diagnose", "off")
    guard = sg.Guard(
        it.model, it.optimizer, it.loss_fn, max_grad_norm=clip_norm, scheduler=it.scheduler, ema=it.ema, **options
    )
    with guard:
        for batch in data:
            guard.step(batch)
    summary = guard.summary()
    assert not summary["guard_faults"], summary
    it.guard = guard  # type: ignore[attr-defined]
    return it


def make_guard(model: nn.Module, optimizer: Any, loss_fn: Any, **options: Any) -> sg.Guard:
    """A guard that skips and does nothing else, with no diagnosis: for tests of what a skip leaves behind."""
    options.setdefault("policy", SKIP_ONLY)
    options.setdefault("diagnose", "off")
    return sg.Guard(model, optimizer, loss_fn, **options)


def state_of(it: Setup) -> dict[str, Any]:
    """Everything that must agree, by name."""
    state: dict[str, Any] = {f"model.{k}": v for k, v in it.model.state_dict().items()}
    state |= {f"ema.{k}": v for k, v in it.ema.state_dict().items()}
    model: Any = it.model
    state |= {"calls": model.calls, "plain": model.plain_tensor, "scratch": model.scratch}
    for index, values in enumerate(it.optimizer.state.values()):
        state |= {f"optimizer.{index}.{k}": v for k, v in values.items()}
    state["num_states"] = len(it.optimizer.state)
    state["lr"] = [group["lr"] for group in it.optimizer.param_groups]
    state["schedule"] = {k: v for k, v in it.scheduler.state_dict().items() if isinstance(v, int | float | list)}
    state["rng.torch"] = torch.get_rng_state()
    state["rng.python"] = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    state["rng.numpy"] = (numpy_state["state"]["key"].tolist(), numpy_state["state"]["pos"])
    return state


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of entries of two `state_of` that are not equal bit for bit."""
    assert len(a) > 10
    return same_bits(a, b)


def same_bits(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of entries that are not equal bit for bit; a tensor is compared by its bytes, so a NaN equals itself."""
    wrong = sorted(set(a) ^ set(b))
    for name in set(a) & set(b):
        x, y = a[name], b[name]
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            same = x.dtype == y.dtype and x.shape == y.shape and _bytes(x) == _bytes(y)
        else:
            same = type(x) is type(y) and x == y
        if not same:
            wrong.append(name)
    return wrong


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
