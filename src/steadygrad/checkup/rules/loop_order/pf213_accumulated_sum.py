"""Accumulated gradients are summed, not averaged.

What it sees
    A loop that calls backward on every batch and steps on every n-th (`if (i + 1) % n == 0`), in a function that never
    divides by n.

Why it hurts
    The gradient is n times as large: a clip limit and SGD's learning rate mean something else for every n, and half
    precision overflows n times as early. Changing n to fit the memory changes the training.

Smallest example
    loss.backward()
    if (i + 1) % 8 == 0: optimizer.step(); optimizer.zero_grad()
    # fixed
    (loss / 8).backward()
    if (i + 1) % 8 == 0: optimizer.step(); optimizer.zero_grad()

What to do
    `(loss / 8).backward()`.

Safety
    A note: some sum on purpose, and Adam without a clip hardly notices. Any division by n in the
    function counts, and so does scaling the gradients.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    https://github.com/huggingface/transformers/issues/1563
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import hands_over, inside, loops
from ...inputs.script import FUNCTIONS, Script

SCALES = re.compile(r"scale\w*grad|grad\w*scal|normali[sz]e\w*grad|grad(\.data)?\.(div|mul)_", re.IGNORECASE)
RULE = Rule("PF213", "accumulated_sum", "Accumulated gradients are summed, not averaged.")


def of_script(script: Script) -> Iterator[Advice]:
    """The step must stand in the `if` and the backward outside it."""
    if hands_over(script):
        return
    for found in loops(script):
        backward = next(event.node for event in found if event.kind == "backward")
        step = next(event.node for event in found if event.kind in ("step", "scaler_step"))
        every = _every(script, step, backward)
        if every is None or _divides(script, step, every):
            continue
        yield at(
            RULE, Level.NOTE, script, backward, f"gradients of {every} batches are added up and never averaged",
            help=f"divide the loss by {every} before backward",
        )  # fmt: skip


def _every(script: Script, step: ast.AST, backward: ast.AST) -> str | None:
    """The n of `if (i + 1) % n == 0` around the step and not around the backward."""
    around_backward = set(map(id, script.above(backward)))
    for node in script.above(step):
        if isinstance(node, FUNCTIONS):
            return None
        if isinstance(node, ast.If) and id(node) not in around_backward:
            for part in ast.walk(node.test):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                    return ast.unparse(part.right)
    return None


def _divides(script: Script, step: ast.AST, every: str) -> bool:
    for node in inside(script.scope(step)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and every in ast.unparse(node.right):
            return True
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and every in ast.unparse(node.value):
            return True
        # The gradients may be scaled instead, by the number of tokens for example.
        if isinstance(node, ast.Call) and SCALES.search(ast.unparse(node.func)):
            return True
    return False


_LOOP = """
import torch
for i, x in enumerate(loader):
    loss = model(x){how}
    loss.backward()
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
SPECIMENS = [_LOOP.format(how="")]
NEAR_MISSES = [
    _LOOP.format(how=" / accumulate"),
    _LOOP.format(how="").replace("if (i + 1) % accumulate == 0:", "if ready:"),
    _LOOP.format(how="").replace(
        "        optimizer.step()", "        scale_grads(model, 1 / tokens)\n        optimizer.step()"
    ),
    """
import torch
for i, x in enumerate(loader):
    optimizer.zero_grad()
    model(x).backward()
    optimizer.step()
    if i % 100 == 0:
        print(i)
""",
]
