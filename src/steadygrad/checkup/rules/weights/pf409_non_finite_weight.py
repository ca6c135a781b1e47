"""A weight is NaN or infinite before training starts.

What it sees
    A live parameter with a value that is not finite.

Why it hurts
    Every loss that reads it is NaN from the first step. The usual causes are a poisoned checkpoint, a layer that was
    never initialised, and a float16 cast of weights beyond 65504.

Smallest example
    model.load_state_dict(torch.load("poisoned.pt"))
    # fixed
    model.load_state_dict(torch.load("last_good.pt"))  # found by `steady scan --since`

What to do
    `steady scan CHECKPOINT` names the tensors; `steady scan --since` finds the last good one.

Safety
    Certain: read from the values. A guard's glance at the start does not read them on a GPU.

References
    https://github.com/openai/CLIP/issues/15
    https://github.com/ultralytics/ultralytics/issues/24615
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, listed
from ...inputs.facts import ParameterFacts, Setup

RULE = Rule("PF409", "non_finite_weight", "A weight is NaN or infinite before training starts.")


def of_setup(setup: Setup) -> Iterator[Advice]:
    """Silent about parameters that were not checked."""
    bad = [p.name for p in setup.parameters if p.finite is False]
    if bad:
        yield about(
            RULE, Level.ERROR, listed(bad), f"{len(bad)} tensors hold NaN or infinite values before the first step",
            help="steady scan the checkpoint they came from; initialise what was never written", num_tensors=len(bad),
        )  # fmt: skip


SPECIMENS = [Setup(parameters=(ParameterFacts(name="w", finite=False),))]
NEAR_MISSES = [Setup(parameters=(ParameterFacts(name="w", finite=True), ParameterFacts(name="v", finite=None)))]
