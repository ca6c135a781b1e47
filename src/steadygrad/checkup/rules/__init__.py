"""The rules of the check-up, one a file, and who judges what.

A module has RULE and one or more judges, each a function from what it looks at to the advice it gives:
`of_script(script)`, `of_settings(settings)`, `of_setup(setup)`, `of_data(data)`. SPECIMENS must each trigger it and
NEAR_MISSES must not; text is a script, a mapping is settings, the rest are facts. No rule imports torch.
Versions that are known to be wrong are rules as well: each table of `versions/known_bugs.toml` is one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from ...records.rules import rule_modules

OF_SETUP = (
    "pf101_fp16_weights_trained",
    "pf102_fp16_without_scaler",
    "pf104_fp16_for_bf16_model",
    "pf105_vanishing_epsilon",
    "pf106_update_below_half_ulp",
    "pf209_learning_rate_out_of_range",
    "pf210_not_in_optimizer",
    "pf211_nothing_trainable",
    "pf212_optimizer_cannot_refuse",
    "pf303_reentrant_checkpoint",
    "pf409_non_finite_weight",
    "pf505_token_outside_embedding",
)
"""The rules that judge live objects. Named here, so that a guard's glance at the start imports only these."""


@cache
def judges() -> tuple[ModuleType, ...]:
    """Every rule's module, in the order of their codes."""
    return (*rule_modules(__name__, Path(__file__).parent, "pf*"), *_known_bugs())


@cache
def judges_of_setup() -> tuple[ModuleType, ...]:
    """Only those that judge live objects."""
    home = Path(__file__).parent
    return (*(module for name in OF_SETUP for module in rule_modules(__name__, home, name)), *_known_bugs(live=True))


def _known_bugs(*, live: bool = False) -> tuple[ModuleType, ...]:
    from .versions.known_bugs import known_bugs

    return tuple(rule for rule in known_bugs() if not live or hasattr(rule, "of_setup"))
