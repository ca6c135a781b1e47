"""Weights that are finite and of no use any more: batches whose loss was as usual have no finite loss under them.

So it is after one update that was far too long: a sample a million times too large, a learning rate that jumped. No
weight is NaN, and yet no later batch can be trained on. A few batches that are kept show it: their lines are run again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .good_states import AppliedUpdate

ASKED = 3
"""Updates whose batches are run again."""
USUAL = 10.0
"""A loss is as usual up to so many times the median of the lower half of the losses that are kept."""


def usual_updates(updates: Sequence[AppliedUpdate]) -> list[AppliedUpdate]:
    """The newest updates whose batches had a usual loss with the weights of then, oldest first."""
    sizes = list(map(_size, updates))
    finite = sorted(filter(math.isfinite, sizes))
    if not finite:
        return []
    limit = USUAL * statistics.median(finite[: (len(finite) + 1) // 2])
    return [update for update, size in zip(updates, sizes, strict=True) if size <= limit][-ASKED:]


def all_lost(asked: Sequence[AppliedUpdate], again: Callable[..., Tensor], *, finite: bool = False) -> bool:
    """Whether none of these batches has a finite loss with the weights of now, or, of those `finite` too, one near to
    usual. `again` runs the program's own lines."""
    limit = USUAL * max(_size(update) for update in asked) if finite else math.inf
    return not any(math.isfinite(loss := _loss_now(update, again)) and abs(loss) <= limit for update in asked)


def _size(update: AppliedUpdate) -> float:
    return abs(sum(map(float, update.losses)))


def _loss_now(update: AppliedUpdate, again: Callable[..., Tensor]) -> float:
    return sum(float(again(each, each.batch, each.noted()).detach()) for each in update.loop_passes)
