"""The loss scale falls and will be used up.

What it sees
    The loss scale was lower at each of four samples or more than at the one before, and at this pace is below 1 within
    twice the time that was observed.

Why it hurts
    The scale falls because gradients overflow again and again. At the end no scale is small enough and every update is
    dropped.

Smallest example
    scaler.get_scale()   # 65536, 4096, 256, 16 at updates 200, 400, 600, 800
    # fixed
    torch.autocast("cuda", dtype=torch.bfloat16)   # needs no scale

What to do
    Find what grows: `SY408` and `SY418` name modules near the end of float16. Train in bfloat16, or clip gradients.

Safety
    It changes nothing. A scale that was set too high and finds its level in the first updates is not reported.

References
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..growth import time_until
from ..sample_helpers import StepObservation, about

RULE = Rule("SY419", "loss_scale_running_out", "The loss scale falls and will be used up.")
_FIRST = 100


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure. A scale that falls is a reciprocal that grows: it is used up when that reaches 1."""
    scales = [(each.step, each.loss_scale) for each in samplings if each.step >= _FIRST and each.loss_scale]
    if not scales or not samplings[-1].loss_scale or any(scale <= 0 for _, scale in scales):
        return None
    falls = all(after < before for (_, before), (_, after) in itertools.pairwise(scales))
    crossing = time_until([(step, 1 / scale) for step, scale in scales], 1.0) if falls else None
    if crossing is None:
        return None
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        ["the loss scale"],
        f"is used up in about {crossing.about} updates ({crossing.earliest} to {crossing.latest}): it fell from "
        f"{scales[0][1]:g} to {scales[-1][1]:g} in {scales[-1][0] - scales[0][0]} updates",
        updates=crossing.about,
        earliest=crossing.earliest,
        latest=crossing.latest,
    )


def _scales(*scales: float) -> list[StepObservation]:
    return [StepObservation(step=200 * (number + 1), loss_scale=scale) for number, scale in enumerate(scales)]


def SPECIMEN() -> list[StepObservation]:
    return _scales(4096.0, 512.0, 64.0, 8.0)


def NEAR_MISS() -> list[StepObservation]:
    """It has found its level."""
    return _scales(4096.0, 512.0, 64.0, 64.0)
