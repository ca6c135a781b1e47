"""The one rule by which an update is refused for its numbers: on the host over a reading, on the device as bounds.

Both say the same of the same numbers: every judged number must be finite, the gradient norm not above its limit, and
no micro-batch's loss above its limit. A property test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..records import Reading
from .history import RefusalLimits


def must_refuse(reading: Reading) -> bool:
    """The rule on the host."""
    numbers = (reading.grad_norm, reading.loss, *reading.terms.values(), *reading.micro_losses)
    if not all(map(math.isfinite, numbers)):
        return True
    losses = reading.micro_losses or (reading.loss,)
    norm_limit = math.inf if reading.grad_norm_limit is None else reading.grad_norm_limit
    loss_limit = math.inf if reading.loss_limit is None else reading.loss_limit
    return reading.grad_norm > norm_limit or any(loss > loss_limit for loss in losses)


def bounds(term_names: Sequence[str], num_micro: int, limits: RefusalLimits, largest: float) -> list[list[float]]:
    """The rule for the device: the least and the most that the total norm and every micro-batch's terms may be.

    `largest` is the largest finite number of their dtype. A NaN is within no bounds.
    """
    width, place = len(term_names), term_names.index("loss")
    most = [min(limits.grad_norm, largest)] + [largest] * (width * num_micro)
    for micro in range(num_micro):
        most[1 + micro * width + place] = min(limits.loss, largest)
    return [[-largest] * len(most), most]
