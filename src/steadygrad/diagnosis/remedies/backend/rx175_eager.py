"""Run without torch.compile, all of it or one module.

What it sees
    A step that fails as compiled code and is finite in eager.

Why it hurts
    Fusion changes the order and the width of intermediate roundings, and a compiler can be wrong.

Smallest example
    model.pool.forward = torch.compiler.disable(model.pool.forward)
    # instead of
    model.compile()

What to do
    Keep the module out of the compiled region, or compile with `emulate_precision_casts` where that is enough.

Safety
    Close: the arithmetic of eager code, slower.

References
    https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX175", "eager", "Run without torch.compile, all of it or one module.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    yield from context.alternatives(RULE.code, "eager", "emulate_casts")
