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
AS_COMPILED = frozenset({"eager", "emulate_casts", "skip_batch"})
"""What can be tried where only the compiled step fails: a change of one line would be tried in eager, and hold."""


@cache
def remedies() -> tuple[ModuleType, ...]:
    """Every remedy's module, in the order of their codes."""
    return rule_modules(__name__, Path(__file__).parent, "rx*")


def propose(context: RemedyContext) -> list[Proposal]:
    """What is worth trying for this patient."""
    found = [proposal for remedy in remedies() for proposal in remedy.propose(context)]
    if context.evidence.reproduced[0] == 0:
        possible = AS_COMPILED if context.evidence.compiled else WITHOUT_REPRODUCTION
        found = [proposal for proposal in found if proposal.slug in possible]
    # What proved the cause is known to help: it comes first, and no limit cuts it off.
    found.sort(key=lambda proposal: proposal.slug != context.evidence.proved_by)
    return found[:MAX_TRIALS]
