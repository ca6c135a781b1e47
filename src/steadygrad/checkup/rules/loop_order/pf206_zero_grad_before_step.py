"""Gradients are cleared between backward and step.

What it sees
    backward, then zero_grad of the same optimizer, then its step, in one block and in this order.

Why it hurts
    The step sees no gradient at all: nothing is learnt, or momentum and weight decay alone move the weights.

Smallest example
    loss.backward(); optimizer.zero_grad(); optimizer.step()
    # fixed
    optimizer.zero_grad(); loss.backward(); optimizer.step()

What to do
    Clear before backward or after step.

Safety
    Only calls that stand in one block are ordered. A note where the model's own zero_grad is called: the optimizer may
    be that of something else, as of an attack.

References
    https://docs.pytorch.org/docs/stable/optim.html#taking-an-optimization-step
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import loops
from ...inputs.script import Script
from .pf202_clip_after_step import _block

RULE = Rule("PF206", "zero_grad_before_step", "Gradients are cleared between backward and step.")


def of_script(script: Script) -> Iterator[Advice]:
    """The owner of zero_grad must be the owner of the step, or the model."""
    for found in loops(script):
        order = [event for event in found if event.kind in ("backward", "zero_grad", "step")]
        for first, second, third in zip(order, order[1:], order[2:], strict=False):
            if (first.kind, second.kind, third.kind) != ("backward", "zero_grad", "step"):
                continue
            same = second.owner == third.owner or second.owner.endswith("model")
            if same and len({id(_block(script, event.node)) for event in (first, second, third)}) == 1:
                level = Level.ERROR if second.owner == third.owner else Level.NOTE
                yield at(
                    RULE, level, script, second.node, "the gradients are cleared before the step can use them",
                    help="move zero_grad() in front of backward(), or behind step()",
                )  # fmt: skip


SPECIMENS = [
    """
import torch
for x in loader:
    loss = model(x)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
""",
]
WARNINGS = SPECIMENS
ONLY_NOTES = [SPECIMENS[0].replace("optimizer.zero_grad", "model.zero_grad")]
NEAR_MISSES = [
    """
import torch
for x in loader:
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    """
import torch
for x in loader:
    d_loss = d(x)
    d_loss.backward()
    g_optimizer.zero_grad()
    d_optimizer.step()
""",
]
