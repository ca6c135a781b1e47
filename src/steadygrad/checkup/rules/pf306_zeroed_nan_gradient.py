"""NaN gradients or losses are replaced by zeros and trained on.

What it sees
    `nan_to_num` over a gradient or a loss, in the loop or in a gradient hook, or an assignment into the NaN places of
    a `.grad`.

Why it hurts
    The cause stays, and the step is taken: momentum and weight decay move the weights with nothing behind them. One
    run went on like this for 98,000 steps.

Smallest example
    p.grad = torch.nan_to_num(p.grad)

What to do
    Refuse the whole step, keep the batch, find the cause: `steady diagnose`.

Safety
    nan_to_num over rewards, inputs or outputs that are not differentiated is not reported.

References
    https://github.com/huggingface/trl/issues/6702
    https://github.com/pytorch/torchtitan/issues/916
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...records.checkup import Advice, Level
from ...rules import Rule
from ..advice import at
from ..arithmetic import asks_if_finite
from ..script import Script, last_word

RULE = Rule("PF306", "zeroed_nan_gradient", "NaN gradients or losses are replaced by zeros and trained on.")
HELP = "skip the whole step instead, and keep the batch to find the cause"


def of_script(script: Script) -> Iterator[Advice]:
    """At most one finding a statement."""
    seen: set[int] = set()
    for node in script.nodes:
        what = _what(script, node)
        if what and getattr(node, "lineno", 0) not in seen and not script.untracked_for_looking(node):
            seen.add(getattr(node, "lineno", 0))
            yield at(RULE, Level.WARNING, script, node, what, help=HELP)


def _what(script: Script, node: ast.AST) -> str:
    if isinstance(node, ast.Call) and last_word(node.func) in ("nan_to_num", "nan_to_num_"):
        op = script.op(node)
        about = ast.unparse(op.operand) if op is not None and op.operand is not None else ""
        if about.endswith((".grad", ".grad.data")):
            return "NaN in a gradient is replaced, and the step is taken"
        if _in_hook(script, node):
            return "NaN is replaced in a gradient hook, and the step is taken"
        target = _target(script, node)
        if target.split(".")[-1] in ("loss", "total_loss") and script.op(node) is not None:
            return "a NaN loss is replaced, and trained on"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        place = node.targets[0]
        if ".grad" in ast.unparse(place.value) and asks_if_finite(place.slice):
            return "NaN in a gradient is overwritten, and the step is taken"
    return ""


def _in_hook(script: Script, node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call) and last_word(each.func) in ("register_hook", "register_post_accumulate_grad_hook")
        for each in script.above(node)
    )


def _target(script: Script, node: ast.AST) -> str:
    parent = script.parents.get(node)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return ast.unparse(parent.targets[0])
    return ""


SPECIMENS = [
    """
import torch
for p in model.parameters():
    p.grad = torch.nan_to_num(p.grad)
optimizer.step()
""",
    """
import torch
for p in model.parameters():
    p.grad[torch.isnan(p.grad)] = 0
""",
    """
import torch
loss = torch.nan_to_num(loss, nan=0.0)
loss.backward()
""",
    """
import torch
for p in model.parameters():
    p.register_hook(lambda g: torch.nan_to_num(g))
""",
]
NEAR_MISSES = [
    """
import torch
rewards = torch.nan_to_num(rewards)
advantages = rewards - rewards.mean()
""",
    """
import torch
for p in model.parameters():
    p.grad[mask] = 0
""",
]
