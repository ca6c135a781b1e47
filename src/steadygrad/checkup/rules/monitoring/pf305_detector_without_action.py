"""A NaN is seen, reported, and trained on.

What it sees
    `if torch.isnan(loss):` whose body only prints, logs or counts, in a function that goes on to backward.

Why it hurts
    The message scrolls by and the update poisons the weights in the same step. Everything after it is wasted.

Smallest example
    if torch.isnan(loss): print("NaN!")
    loss.backward(); optimizer.step()
    # fixed
    if not torch.isfinite(loss): optimizer.zero_grad(); continue

What to do
    Skip the batch on all ranks, roll back, or raise. `sg.Guard` and `sg.attach` do.

Safety
    A body with any call the rule does not know, any assignment or any jump counts as acting.

References
    https://github.com/deepspeedai/DeepSpeed/issues/8415
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import inside, kind_of
from ...inputs.loss_expressions import asks_if_finite
from ...inputs.script import Script, last_word

RULE = Rule("PF305", "detector_without_action", "A NaN is seen, reported, and trained on.")
SPEAKS = {
    "print",
    "warning",
    "warn",
    "info",
    "error",
    "debug",
    "critical",
    "exception",
    "write",
    "log",
    "print_rank_0",
    "pprint",
}


def of_script(script: Script) -> Iterator[Advice]:
    """The condition must be about a loss or a gradient."""
    for node in script.nodes:
        if not isinstance(node, ast.If) or node.orelse or not asks_if_finite(node.test):
            continue
        asked = ast.unparse(node.test).lower()
        if not ("loss" in asked or "grad" in asked) or not all(_only_speaks(each) for each in node.body):
            continue
        scope = script.scope(node)
        if any(isinstance(each, ast.Call) and kind_of(each) == "backward" for each in inside(scope)):
            yield at(
                RULE, Level.WARNING, script, node, "a bad value is reported, and the step goes on with it",
                help="skip the step on all ranks or raise; sg.Guard and sg.attach do it exactly",
            )  # fmt: skip


def _only_speaks(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.AugAssign():
            return True
        case ast.Expr(value=ast.Call() as call):
            return last_word(call.func) in SPEAKS
        case ast.Expr(value=ast.Constant()):
            return True
        case _:
            return False


SPECIMENS = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    if torch.isnan(loss):
        print("NaN loss")
        bad += 1
    loss.backward()
    optimizer.step()
""",
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    if loss != loss:
        logger.warning("NaN loss")
    loss.backward()
    optimizer.step()
""",
]
NEAR_MISSES = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    if torch.isnan(loss):
        print("NaN loss")
        raise SystemExit(1)
    loss.backward()
    optimizer.step()
""",
    """
import torch
for x in loader:
    optimizer.zero_grad()
    loss = model(x)
    if not torch.isfinite(loss):
        print("NaN loss")
        continue
    loss.backward()
    optimizer.step()
""",
]
