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
    A body with any call the rule does not know, any assignment or any jump counts as acting. A note where a GradScaler
    takes the step, which leaves out a NaN by itself, or where no step is seen in the function.

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
STEPS = ("step", "scaler_step")
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
        if _asks_if_good(node.test):
            continue
        asked = ast.unparse(node.test).lower()
        if not ("loss" in asked or "grad" in asked) or not all(_only_speaks(each) for each in node.body):
            continue
        scope = script.scope(node)
        if _steps_only_if_finite(script, node, scope):
            continue
        if any(isinstance(each, ast.Call) and kind_of(each) == "backward" for each in inside(scope)):
            level = Level.WARNING if _steps_by_itself(scope) else Level.NOTE
            yield at(
                RULE, level, script, node, "a bad value is reported, and the step goes on with it",
                help="skip the step on all ranks or raise; sg.Guard and sg.attach do it exactly",
            )  # fmt: skip


def _asks_if_good(test: ast.expr) -> bool:
    """`if not torch.isnan(loss): total += loss.item()`: the body is for good values, and says nothing of bad ones."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    words = {last_word(each.func) for each in ast.walk(test) if isinstance(each, ast.Call)}
    return (bool(words & {"isnan", "isinf"}) and negated) or ("isfinite" in words and not negated)


def _steps_by_itself(scope: ast.AST) -> bool:
    """Whether the function has a step that takes whatever the gradients are."""
    return any(isinstance(each, ast.Call) and kind_of(each) == "step" for each in inside(scope))


def _steps_only_if_finite(script: Script, node: ast.If, scope: ast.AST) -> bool:
    """Whether another condition of the function asks about the same value and holds the step."""
    about = _asked_about(node.test)
    for each in ast.walk(scope):
        if not isinstance(each, ast.If) or each is node or not asks_if_finite(each.test):
            continue
        steps = [call for call in ast.walk(each) if isinstance(call, ast.Call) and kind_of(call) in STEPS]
        if steps and _asked_about(each.test) & about and script.scope(each) is scope:
            return True
    return False


def _asked_about(test: ast.expr) -> set[str]:
    """The names of a condition, less those of functions."""
    called = {id(each.func) for each in ast.walk(test) if isinstance(each, ast.Call)}
    called |= {id(each.func.value) for each in ast.walk(test) if _is_method(each)}  # type: ignore[attr-defined]
    return {each.id for each in ast.walk(test) if isinstance(each, ast.Name) and id(each) not in called}


def _is_method(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and bool(node.args)


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
WARNINGS = SPECIMENS
ONLY_NOTES = [SPECIMENS[0].replace("optimizer.step()", "scaler.step(optimizer)")]
NEAR_MISSES = [
    SPECIMENS[0].replace("if torch.isnan(loss):", "if not torch.isnan(loss):"),
    SPECIMENS[0].replace("if torch.isnan(loss):", "if torch.isfinite(loss):"),
    """
import math, torch
for x in loader:
    optimizer.zero_grad()
    model(x).backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if math.isnan(grad_norm):
        print("grad norm is NaN")
    if amp:
        scaler.step(optimizer)
    elif not math.isnan(grad_norm):
        optimizer.step()
""",
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
