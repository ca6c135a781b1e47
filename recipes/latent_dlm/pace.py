"""What guarding costs here: the same model, loss and batches, guarded and plain, in turns in one process."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import steadygrad as sg

from .config import Config
from .losses import make_loss
from .model import MMDiT
from .prepared import Batch, Prepared, batches
from .training import make_optimizer, make_schedule

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def plain_step(model: nn.Module, config: Config, device: str) -> Callable[[Batch], None]:
    """The loop everybody writes: forward, backward, clip, step, schedule. It looks at nothing."""
    optimizer = make_optimizer(model, config)
    schedule = make_schedule(optimizer, config)
    loss_fn = make_loss(config)
    autocast = torch.autocast(device, DTYPES[config.training.dtype], enabled=config.training.dtype != "fp32")

    def step(batch: Batch) -> None:
        with autocast:
            loss = loss_fn(model, batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(model.parameters(), config.optimizer.grad_clip_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def measure_pace(
    config: Config, data: Prepared, *, device: str, rounds: int = 10, steps: int = 10, warmup: int = 5
) -> dict[str, Any]:
    """Median ratio of guarded to plain time over rounds; which of the two goes first alternates."""
    accumulate = config.training.gradient_accumulation_steps
    if accumulate != 1:
        raise sg.UsageError("Pace is measured without accumulation: --set training.gradient_accumulation_steps=1.")
    torch.manual_seed(config.training.seed)
    plain_model, guarded_model = (MMDiT(config).to(device) for _ in range(2))
    feed = batches(data.train, config.training.train_batch_size, seed=config.training.seed)
    optimizer = make_optimizer(guarded_model, config)
    plain = plain_step(plain_model, config, device)
    with (
        tempfile.TemporaryDirectory() as folder,
        sg.Guard(
            guarded_model, optimizer, make_loss(config), max_grad_norm=config.optimizer.grad_clip_norm,
            scheduler=make_schedule(optimizer, config), precision=config.training.dtype, run_dir=folder,
        ) as guard,
    ):  # fmt: skip
        turns: dict[str, Callable[[Batch], Any]] = {"plain": plain, "guarded": guard.step}
        for step in turns.values():
            for _ in range(warmup):
                step(next(feed))
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(rounds):
            shared = [next(feed) for _ in range(steps)]
            for name in sorted(turns, reverse=number % 2 == 0):
                _wait(device)
                began = time.perf_counter()
                for batch in shared:
                    turns[name](batch)
                _wait(device)
                seconds[name].append(time.perf_counter() - began)
    ratios = sorted(one / other for one, other in zip(seconds["guarded"], seconds["plain"], strict=True))
    return {
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]],
        "ratio_of_sums": sum(seconds["guarded"]) / sum(seconds["plain"]),
        "plain_ms": 1000 * statistics.median(seconds["plain"]) / steps,
        "guarded_ms": 1000 * statistics.median(seconds["guarded"]) / steps,
        "rounds": rounds,
        "steps_per_round": steps,
        "batch_size": config.training.train_batch_size,
    }


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
