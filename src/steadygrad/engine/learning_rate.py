"""Backing the learning rate off without the schedule noticing.

The factor is applied around one optimizer step and taken back, so the scheduler computes from its own numbers and
the rate returns exactly when the factor returns to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor
from torch.optim import Optimizer


def scaled_learning_rate(optimizers: Sequence[Optimizer], factor: float) -> AbstractContextManager[None]:
    """Within the block every group's learning rate is `factor` times its own. Does not sync."""
    return nullcontext() if factor == 1.0 else _scaled(optimizers, factor)


@contextmanager
def _scaled(optimizers: Sequence[Optimizer], factor: float) -> Iterator[None]:
    kept = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    for group, rate in kept:
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in kept:
            group["lr"] = rate


def current_rate(optimizer: Optimizer) -> float:
    """The first group's learning rate. A tensor rate on a GPU is not read (that would sync): NaN stands for it."""
    # A container of optimizers has no rate itself.
    rate = optimizer.param_groups[0].get("lr", 0.0)
    if isinstance(rate, Tensor):
        return float(rate) if rate.device.type == "cpu" else float("nan")
    return float(rate)
