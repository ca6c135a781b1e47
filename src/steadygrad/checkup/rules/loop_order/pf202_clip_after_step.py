"""Gradients are clipped after the optimizer has used them.

What it sees
    A clip that follows the optimizer's step in the same block, with no backward in between and none before the step.

Why it hurts
    The step was taken with the full gradient; the clipped one is thrown away by the next zero_grad.

Smallest example
    loss.backward(); optimizer.step(); clip_grad_norm_(model.parameters(), 1.0)
    # fixed
    loss.backward(); clip_grad_norm_(model.parameters(), 1.0); optimizer.step()

What to do
    Clip between backward and step.

Safety
    It changes training: the limit takes effect for the first time.

References
    https://github.com/awslabs/graphstorm/issues/1366
    https://github.com/jongwook/onsets-and-frames/issues/24
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import loops
from ...inputs.script import Script

RULE = Rule("PF202", "clip_after_step", "Gradients are clipped after the optimizer has used them.")


def of_script(script: Script) -> Iterator[Advice]:
    """Backward, step and clip must stand in one block, so that their order is the order in which they run."""
    for found in loops(script):
        order = [event for event in found if event.kind in ("backward", "step", "scaler_step", "clip")]
        kinds = [event.kind.removeprefix("scaler_") for event in order]
        for place in range(len(kinds) - 2):
            if kinds[place : place + 3] == ["backward", "step", "clip"] and "clip" not in kinds[: place + 1]:
                nodes = [event.node for event in order[place : place + 3]]
                if _in_order(script, nodes):
                    yield at(
                        RULE, Level.ERROR, script, nodes[2], "clips after the step has used the gradients",
                        help="move the clip between backward() and step()",
                    )  # fmt: skip


def _in_order(script: Script, nodes: list[ast.AST]) -> bool:
    """One block holds all of them; the clip may stand in an `if` of that block (`if max_norm is not None:`)."""
    blocks = [_block(script, node) for node in nodes]
    if isinstance(blocks[2], ast.If) and blocks[2] is not blocks[1]:
        blocks[2] = _block(script, blocks[2])
    return blocks[0] is blocks[1] is blocks[2]


def _block(script: Script, node: ast.AST) -> ast.AST:
    """The compound statement whose body holds this statement."""
    simple = (ast.expr, ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.keyword)
    return next(each for each in script.above(node) if not isinstance(each, simple))


SPECIMENS = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
]
SPECIMENS += [
    SPECIMENS[0].replace("    torch.nn.utils", "    if max_norm is not None:\n        torch.nn.utils"),
]
WARNINGS = SPECIMENS
NEAR_MISSES = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    """
import torch
for x in loader:
    d_loss(x).backward()
    d_optimizer.step()
    g_loss(x).backward()
    torch.nn.utils.clip_grad_norm_(g.parameters(), 1.0)
    g_optimizer.step()
    g_optimizer.zero_grad()
""",
]
