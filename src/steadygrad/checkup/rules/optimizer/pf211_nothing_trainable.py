"""Nothing in the model can be trained.

What it sees
    A live model all of whose parameters are frozen, or that has none.

Why it hurts
    backward fails with `element 0 of tensors does not require grad`, or, where an input requires one, runs for hours
    and changes nothing. The usual cause is an adapter loaded for inference.

Smallest example
    PeftModel.from_pretrained(base, "adapter")  # is_trainable=False by default
    # fixed
    PeftModel.from_pretrained(base, "adapter", is_trainable=True)

What to do
    `PeftModel.from_pretrained(..., is_trainable=True)`, or `requires_grad_(True)` on what shall learn.

Safety
    Certain: read from the parameters.

References
    https://github.com/huggingface/transformers/issues/23170
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about
from ...inputs.facts import ParameterFacts, Setup

RULE = Rule("PF211", "nothing_trainable", "Nothing in the model can be trained.")


def of_setup(setup: Setup) -> Iterator[Advice]:
    """Also for a model without parameters."""
    if not setup.trainable:
        count = len(setup.parameters)
        yield about(
            RULE, Level.ERROR, setup.model_class,
            f"all {count} parameters are frozen" if count else "the model has no parameters",
            help="requires_grad_(True) on what shall learn; is_trainable=True when loading an adapter",
        )  # fmt: skip


SPECIMENS = [Setup(parameters=(ParameterFacts(name="w", trainable=False),)), Setup()]
NEAR_MISSES = [Setup(parameters=(ParameterFacts(name="w", trainable=False), ParameterFacts(name="lora")))]
