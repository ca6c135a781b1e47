"""Finite in eager, not finite when compiled.

What it sees
    A run that uses torch.compile, whose failing step is finite in every eager replay and fails again as compiled code.

Why it hurts
    Fusion changes the order and the width of intermediate roundings; a guard the eager code relied on may be gone.

Smallest example
    torch.compile(model)(x)  # NaN; model(x) is finite
    # fixed
    model.sensitive = torch.compiler.disable(model.sensitive); torch.compile(model)(x)

What to do
    Run the module eagerly, or keep the sensitive op out of the compiled region.

Safety
    Exact in results, slower.

References
    https://github.com/pytorch/pytorch/issues/100854
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX602", "compiler_numerics", "Finite in eager, not finite when compiled.")


def match(e: Evidence) -> Match | None:
    if e.compiled and e.reproduced[1] and e.reproduced[0] == 0:
        return Match(0.92, "the step fails again as compiled code and is finite in eager")
    return None
