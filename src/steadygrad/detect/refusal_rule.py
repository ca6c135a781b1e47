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
    norm_limit, loss_limit = reading.grad_norm_limit, reading.loss_limit
    if not (math.isfinite(reading.loss) and math.isfinite(reading.grad_norm)):
        return True
    if (reading.terms or reading.micro_losses) and not all_finite(reading):
        return True
    if norm_limit is not None and reading.grad_norm > norm_limit:
        return True
    return loss_limit is not None and max(reading.micro_losses or (reading.loss,)) > loss_limit


def all_finite(reading: Reading) -> bool:
    """Whether its loss and norm are finite, and so are all terms and the losses of its micro-batches."""
    if not (math.isfinite(reading.loss) and math.isfinite(reading.grad_norm)):
        return False
    if not (reading.terms or reading.micro_losses):
        return True
    return all(map(math.isfinite, reading.terms.values())) and all(map(math.isfinite, reading.micro_losses))


def bounds(term_names: Sequence[str], num_micro: int, limits: RefusalLimits, largest: float) -> list[list[float]]:
    """The rule for the device: the least and the most that the total norm and every micro-batch's terms may be.

    `largest` is the largest finite number of their dtype. A NaN is within no bounds.
    """
    width, place = len(term_names), term_names.index("loss")
    most = [min(limits.grad_norm, largest)] + [largest] * (width * num_micro)
    for micro in range(num_micro):
        most[1 + micro * width + place] = min(limits.loss, largest)
    return [[-largest] * len(most), most]
