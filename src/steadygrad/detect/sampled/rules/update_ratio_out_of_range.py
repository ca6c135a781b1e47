"""Updates are far too large, or far too small, for the weights.

What it sees
    The length of the update over the length of the weight, for matrices that did not start at zero. Too large: half
    of them above 0.5 in two samplings in a row, and a hundred steps later, or at the end of the run, the loss is still
    above where it began. Too small: all below 1e-8 in three.

Why it hurts
    About 1e-3 is usual. Near 1 the weights are replaced rather than trained, and the blow-up comes some steps
    later; near 0 nothing is learnt while the loss is plotted all the same.

Smallest example
    torch.optim.AdamW(model.parameters(), lr=1.0)
    # fixed
    torch.optim.AdamW(model.parameters(), lr=1e-3)

What to do
    Change the learning rate by the factor the ratio is off. If the ratio is tiny, look for gradients scaled down by
    mistake, such as clipping before unscaling.

Safety
    It changes nothing. The limits are wide: fine-tuning, warm-up and fresh adapters lie within.

References
    https://arxiv.org/abs/2002.09018
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..sample_helpers import StepObservation, TensorNumbers, about, not_begun, warming_up

RULE = Rule("SY407", "update_ratio_out_of_range", "Updates are far too large, or far too small, for the weights.")
_TOO_LARGE, _TOO_SMALL = 0.5, 1e-8


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; looks at plain numbers."""
    ratios = [_ratios(sampling) for sampling in samplings if sampling.measured]
    large, small = ratios[-2:], ratios[-3:]
    if len(large) == 2 and all(each and median(each.values()) > _TOO_LARGE for each in large):
        # The first steps at a high rate may be rough and the run healthy: whether it is shows in the loss, later.
        return _say(samplings[-1], ratios[-1], median(ratios[-1].values()), "large", provisional=True)
    tiny = len(small) == 3 and all(each and max(each.values()) < _TOO_SMALL for each in small)
    if tiny and not warming_up(samplings, len(small)) and not not_begun(samplings, len(small)):
        return _say(samplings[-1], ratios[-1], max(ratios[-1].values()), "small")
    return None


def _say(
    sampling: StepObservation, ratios: dict[str, float], ratio: float, size: str, *, provisional: bool = False
) -> Finding:  # fmt: skip
    return about(
        RULE,
        sampling,
        Severity.WARNING,
        sorted(ratios, key=ratios.__getitem__, reverse=True),
        f"get updates far too {size}: {ratio:.2g} of the weight's length, usual is about 0.001",
        ratio=ratio,
        num_matrices=len(ratios),
        provisional=provisional,
    )


def _ratios(sampling: StepObservation) -> dict[str, float]:
    return {
        tensor.name: tensor.update_norm / tensor.weight_norm
        for tensor in sampling.tensors
        if tensor.ndim >= 2
        and tensor.in_optimizer
        and tensor.lr > 0.0
        and tensor.num_live
        and not tensor.starts_at_zero
        and tensor.weight_norm > 0.0
    }


def _run(update_norm: float, starts_at_zero: bool = False) -> list[StepObservation]:
    tensor = TensorNumbers(
        name="head.weight",
        lr=1e-3,
        num_sampled=64,
        num_live=64,
        num_moved=64,
        weight_norm=1.0,
        update_norm=update_norm,
        starts_at_zero=starts_at_zero,
    )
    return [StepObservation(step=step, tensors=(tensor,)) for step in (1, 2)]


def SPECIMEN() -> list[StepObservation]:
    return _run(update_norm=2.0)


def NEAR_MISS() -> list[StepObservation]:
    """An adapter that starts at zero at first doubles with each step."""
    return _run(update_norm=2.0, starts_at_zero=True)
