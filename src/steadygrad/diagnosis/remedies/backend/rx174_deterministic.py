"""Use deterministic kernels.

What it sees
    A failing step that no other finding explains, on an accelerator or with kernels chosen by timing.

Why it hurts
    Sums in an order that changes, or a kernel chosen by a race between several, can fail in one run and not in
    the next.

Smallest example
    torch.use_deterministic_algorithms(True)
    # instead of
    torch.backends.cudnn.benchmark = True

What to do
    Use deterministic kernels for the run, or find the op that needs them.

Safety
    Close: the same function, slower; some ops have no deterministic form.

References
    https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX174", "deterministic", "Use deterministic kernels.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "deterministic")
