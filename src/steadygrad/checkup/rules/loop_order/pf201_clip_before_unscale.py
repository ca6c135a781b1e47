"""Gradients are clipped while still multiplied by the loss scale.

What it sees
    A loop with `scaler.scale(loss).backward()` that clips before `scaler.unscale_(optimizer)`, or never unscales.

Why it hurts
    The gradients are up to 65536 times too large there, so every step is clipped to the limit and then divided by the
    scale: the true norm becomes a tiny fraction of what was asked for, and it changes whenever the scale does.

Smallest example
    scaler.scale(loss).backward(); clip_grad_norm_(model.parameters(), 1.0); scaler.step(optimizer)
    # fixed
    scaler.scale(loss).backward(); scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0); scaler.step(optimizer)

What to do
    `scaler.unscale_(optimizer)` once a step, right before the clip.

Safety
    Exact: unscaling before the clip or inside `scaler.step` divides by the same number. A note where the clip is not
    torch's: another one may unscale first.

References
    https://github.com/Lightning-AI/pytorch-lightning/issues/9599
    https://github.com/pytorch/examples/issues/1196
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import OPTIMIZER, SCALER, LoopCall, is_scaled, loops
from ...inputs.script import Script

RULE = Rule("PF201", "clip_before_unscale", "Gradients are clipped while still multiplied by the loss scale.")


def of_script(script: Script) -> Iterator[Advice]:
    """Judges each function's own order of calls. A clip that an optimizer offers itself knows about its scale."""
    for found in loops(script):
        if not any(is_scaled(event.node) for event in found if event.kind == "backward"):
            continue
        for place, event in enumerate(found):
            if event.kind == "clip" and _is_given_scaler(event.node):
                continue  # a function of the program, which can unscale first
            if event.kind == "clip" and not OPTIMIZER.search(event.owner) and _still_scaled(found[:place]):
                level = Level.ERROR if _is_of_torch(script, event.node) else Level.NOTE
                yield at(
                    RULE, level, script, event.node, "clips gradients that still carry the loss scale",
                    help="call scaler.unscale_(optimizer) before clipping",
                )  # fmt: skip


def _still_scaled(before: list[LoopCall]) -> bool:
    """The nearest event above that settles it is a scaled backward."""
    for event in reversed(before):
        if event.kind in ("unscale", "scaler_step", "step"):
            return False
        if event.kind == "backward":
            return is_scaled(event.node)
    return False


def _is_of_torch(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and script.dotted(node.func).startswith("torch.")


def _is_given_scaler(node: ast.AST) -> bool:
    given = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []
    return any(SCALER.search(ast.unparse(each)) for each in given)


SPECIMENS = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    """
import torch
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
]
WARNINGS = SPECIMENS
ONLY_NOTES = [SPECIMENS[0].replace("torch.nn.utils.clip", "ours.clip")]
NEAR_MISSES = [
    """
import torch
from training import clip_grad_norm
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x)).backward()
    clip_grad_norm(1.0, model, optimizer, scaler)
    scaler.step(optimizer)
    scaler.update()
""",
    """
import torch
for x in loader:
    optim.zero_grad()
    scaler.scale(model(x)).backward()
    optim.clip_grad_norm(1.0)
    scaler.step(optim)
""",
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    """
import torch
for x in loader:
    optimizer.zero_grad()
    if amp:
        scaler.scale(model(x)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    else:
        model(x).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
]
