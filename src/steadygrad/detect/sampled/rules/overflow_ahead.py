"""A module's output grows and will leave float16's range.

What it sees
    The largest output of a module that computes in float16 grew along one curve, at least twofold, over four samples or
    more, and along this curve reaches 65,504 within twice the time that was observed.

Why it hurts
    From there on the output is infinite, and the loss becomes NaN. There is time to act now, from a healthy checkpoint.

Smallest example
    hidden = hidden + layer(hidden)              # grows by a factor each layer, and with the weights
    # fixed
    hidden = hidden + layer(norm(hidden))

What to do
    Run this module in bfloat16 or float32, normalise its input, or lower the rate; check that the growth stops.

Safety
    It changes nothing. Growth that slows down is not extrapolated. Not measured in compiled models.

References
    https://huggingface.co/docs/transformers/debugging
"""

from __future__ import annotations

from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..growth import time_until
from ..sample_helpers import ActivationNumbers, StepObservation, about

RULE = Rule("SY418", "overflow_ahead", "A module's output grows and will leave float16's range.")
LIMIT = 65504.0
_FIRST = 10
"""Earlier updates belong to the start of training, where everything grows."""


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure."""
    seen: dict[str, list[tuple[int, float]]] = {}
    for sampling in samplings:
        for each in sampling.activations if sampling.step >= _FIRST else ():
            if each.dtype == "float16":
                seen.setdefault(each.module, []).append((sampling.step, each.absmax))
    now = samplings[-1].step
    found = [(crossing, name) for name, samples in seen.items()
             if samples[-1][0] == now and (crossing := time_until(samples, LIMIT)) is not None]  # fmt: skip
    if not found:
        return None
    (crossing, name), samples = min(found), seen[min(found)[1]]
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [name or "the model"],
        f"leaves float16 in about {crossing.about} updates ({crossing.earliest} to {crossing.latest}): the largest "
        f"output grew from {samples[0][1]:.4g} to {samples[-1][1]:.4g} in {now - samples[0][0]} updates",
        updates=crossing.about,
        earliest=crossing.earliest,
        latest=crossing.latest,
    )


def _outputs(*absmax: float) -> list[StepObservation]:
    return [
        StepObservation(
            step=200 * (n + 1), activations=(ActivationNumbers(module="mlp", dtype="float16", absmax=value),)
        )
        for n, value in enumerate(absmax)
    ]


def SPECIMEN() -> list[StepObservation]:
    return _outputs(100.0, 400.0, 1600.0, 6400.0)


def NEAR_MISS() -> list[StepObservation]:
    """Growth that comes to an end."""
    return _outputs(100.0, 400.0, 900.0, 1000.0)
