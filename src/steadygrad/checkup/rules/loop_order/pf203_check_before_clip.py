"""Gradients are checked, then clipped, and the norm is not checked.

What it sees
    A condition that asks whether gradients are finite, followed by `clip_grad_norm_` whose result is thrown away.

Why it hurts
    The norm can overflow to infinity while every gradient is finite; the clip then multiplies all of them by zero, and
    the run stops learning without a NaN anywhere. The check came too early to see it.

Smallest example
    if torch.isfinite(p.grad).all(): clip_grad_norm_(model.parameters(), 1.0); optimizer.step()
    # fixed
    norm = clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm): optimizer.step()

What to do
    Clip first and check what it returns: `norm = clip_grad_norm_(...)`, then skip if `norm` is not finite. One check
    covers both, and it is cheaper.

Safety
    A note: only gradients near the end of the range are concerned.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import inside, loops
from ...inputs.loss_expressions import asks_if_finite
from ...inputs.script import Script, keyword

RULE = Rule("PF203", "check_before_clip", "Gradients are checked, then clipped, and the norm is not checked.")


def of_script(script: Script) -> Iterator[Advice]:
    """The check must name a gradient; checks of the loss are another matter."""
    for found in loops(script):
        for event in (each for each in found if each.kind == "clip"):
            statement = script.parents.get(event.node)
            if not isinstance(statement, ast.Expr) or not isinstance(event.node, ast.Call):
                continue
            if keyword(event.node, "error_if_nonfinite") is not None:
                continue
            if any(_checks_gradient(node, before=event.node.lineno) for node in inside(script.scope(event.node))):
                yield at(
                    RULE, Level.NOTE, script, event.node, "the norm that the clip returns is thrown away",
                    help="keep it, and skip the step if it is not finite",
                )  # fmt: skip


def _checks_gradient(node: ast.AST, *, before: int) -> bool:
    if not isinstance(node, ast.If) or node.lineno >= before:
        return False
    return asks_if_finite(node.test) and ".grad" in ast.unparse(node.test)


SPECIMENS = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    model(x).backward()
    for p in model.parameters():
        if not torch.isfinite(p.grad).all():
            raise RuntimeError("bad gradient")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
]
NEAR_MISSES = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    model(x).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm):
        optimizer.step()
""",
]
