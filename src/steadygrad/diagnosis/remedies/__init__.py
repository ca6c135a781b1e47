"""The remedies, one file each. A remedy proposes a change where it is worth a trial; it never applies it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from ...records.rules import rule_modules
from .remedy_context import Proposal, RemedyContext

MAX_TRIALS = 14
WITHOUT_REPRODUCTION = frozenset({"recompute_step", "skip_batch"})
"""A step that comes out finite by itself is finite under any change, so a trial of a change would prove nothing."""


@cache
def remedies() -> tuple[ModuleType, ...]:
    """Every remedy's module, in the order of their codes."""
    return rule_modules(__name__, Path(__file__).parent, "rx*")


def propose(context: RemedyContext) -> list[Proposal]:
    """What is worth trying for this patient."""
    found = [proposal for remedy in remedies() for proposal in remedy.propose(context)]
    if context.evidence.reproduced[0] == 0:
        found = [proposal for proposal in found if proposal.slug in WITHOUT_REPRODUCTION]
    return found[:MAX_TRIALS]
