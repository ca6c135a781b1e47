"""NaN gradients or losses are replaced by zeros and trained on.

What it sees
    `nan_to_num` over a gradient or a loss, in the loop or in a gradient hook, an assignment into the NaN places of a
    `.grad`, or a condition that asks for NaN, sets the gradients to zero, and lets the optimizer step follow.

Why it hurts
    The cause stays, and the step is taken: momentum and weight decay move the weights with nothing behind them. One
    run went on like this for 98,000 steps.

Smallest example
    p.grad = torch.nan_to_num(p.grad)
    # fixed
    if not torch.isfinite(p.grad).all(): optimizer.zero_grad(); continue

What to do
    Refuse the whole step, keep the batch, find the cause: `steady diagnose`.

Safety
    A note where limits for both infinities are given, which is a choice, and where no step is seen to follow in the
    same function, as for a loss or in a hook. nan_to_num over rewards, inputs or outputs
    that are not differentiated is not reported. Nor are gradients set to None, which every optimizer passes over, or a
    branch that leaves the step out by a jump or a flag.

References
    https://github.com/huggingface/trl/issues/6702
    https://github.com/pytorch/torchtitan/issues/916
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import events, kind_of, zeroes_gradient
from ...inputs.loss_expressions import asks_if_finite, names_in
from ...inputs.script import FUNCTIONS, Script, last_word

RULE = Rule("PF306", "zeroed_nan_gradient", "NaN gradients or losses are replaced by zeros and trained on.")
HELP = "skip the whole step instead, and keep the batch to find the cause"


def of_script(script: Script) -> Iterator[Advice]:
    """At most one finding a statement."""
    seen: set[int] = set()
    for node in script.nodes:
        what = _what(script, node)
        if what and getattr(node, "lineno", 0) not in seen and not script.untracked_for_looking(node):
            seen.add(getattr(node, "lineno", 0))
            of_gradient = what.startswith("NaN in a gradient") and not _is_chosen(node)
            shown = of_gradient and _step_after(script, script.scope(node), node, set())
            yield at(RULE, Level.WARNING if shown else Level.NOTE, script, node, what, help=HELP)
    for node in script.nodes:
        place = _zeroed_and_stepped(script, node) if isinstance(node, ast.If) else None
        if place is not None and place.lineno not in seen:
            seen.add(place.lineno)
            what = "gradients are set to zero where a value is not finite, and the step is taken"
            yield at(RULE, Level.WARNING, script, place, what, help=HELP)


def _is_chosen(node: ast.AST) -> bool:
    """Limits for both infinities are given: whoever wrote them wants the step."""
    return isinstance(node, ast.Call) and {"posinf", "neginf"} <= {word.arg for word in node.keywords}


def _zeroed_and_stepped(script: Script, node: ast.If) -> ast.stmt | None:
    """The statement under a question about NaN that sets gradients to zero, if an optimizer step follows anyway."""
    within = list(ast.walk(node))
    if not any(isinstance(each, ast.stmt) and zeroes_gradient(each) for each in within):
        return None
    if not _asks(script, node.test) or any(isinstance(each, ast.Call) and _steps(each) for each in within):
        return None
    for branch in (node.body, node.orelse):
        inside = [each for statement in branch for each in ast.walk(statement)]
        jumps = any(isinstance(each, ast.Continue | ast.Break | ast.Return | ast.Raise) for each in inside)
        zeroed = [each for each in inside if isinstance(each, ast.stmt) and zeroes_gradient(each)]
        flags = {name for each in inside if isinstance(each, ast.Assign) for name in names_in(each.targets[0])}
        if zeroed and not jumps and _step_follows(script, node, flags):
            return zeroed[0]
    return None


def _asks(script: Script, test: ast.expr) -> bool:
    """Asked here, or before and kept under a name: `bad = torch.isnan(norm)`, then `if bad:`."""
    kept = [script.value_of(each) for each in ast.walk(test) if isinstance(each, ast.Name)]
    return asks_if_finite(test) or any(each is not None and asks_if_finite(each) for each in kept)


def _steps(call: ast.Call) -> bool:
    return kind_of(call) in ("step", "scaler_step")


def _step_follows(script: Script, node: ast.If, flags: set[str]) -> bool:
    """In the same function; or after the statement that calls it, where the function has no step and its answer, if
    it gives one, is not used."""
    scope = script.scope(node)
    if any(event.kind in ("step", "scaler_step") for event in events(script, scope)):
        return _step_after(script, scope, node, flags)
    if not isinstance(scope, ast.FunctionDef):
        return False
    for call in (each for each in script.calls if last_word(each.func) == scope.name):
        unused = isinstance(script.parents.get(call), ast.Expr)
        if unused and _step_after(script, script.scope(call), call, set()):
            return True
    return False


def _step_after(script: Script, scope: ast.AST, node: ast.AST, flags: set[str]) -> bool:
    """A scaler that unscaled before has noted the bad value and leaves the step out by itself."""
    unscaled = False
    for event in events(script, scope):
        unscaled = unscaled or event.kind == "unscale"
        after = getattr(event.node, "lineno", 0) > (getattr(node, "end_lineno", 0) or 0)
        if after and (event.kind == "step" or (event.kind == "scaler_step" and not unscaled)):
            around = [each for each in script.above(event.node) if not isinstance(each, FUNCTIONS)]
            asked = [each.test for each in around if isinstance(each, ast.If)]
            if not any(_asks(script, test) or names_in(test) & flags for test in asked):
                return True
    return False


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
    """
import torch
for step, batch in enumerate(loader):
    loss = trainer(batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1.0)
    if torch.isnan(norm):
        print("NaN gradient at", step)
        for param in trainer.parameters():
            if param.grad is not None:
                param.grad.data.zero_()
    optimizer.step()
    optimizer.zero_grad()
""",
    """
import torch
class Loop:
    def clean(self, norm):
        bad = not torch.isfinite(norm)
        if bad:
            self.optimizer.zero_grad(set_to_none=False)
    def update(self, loss):
        loss.backward()
        self.clean(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        self.optimizer.step()
""",
    """
import torch
def train(model, optimizer, loss):
    loss.backward()
    for p in model.parameters():
        if p.grad.isnan().any():
            p.grad = torch.zeros_like(p.grad)
    optimizer.step()
""",
]
WARNINGS = [SPECIMENS[0], *SPECIMENS[4:]]
ONLY_NOTES = [
    *SPECIMENS[1:4],
    """
import torch
for x in loader:
    optimizer.zero_grad()
    model(x).backward()
    for p in model.parameters():
        torch.nan_to_num(p.grad, nan=0, posinf=1e5, neginf=-1e5, out=p.grad)
    optimizer.step()
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
    """
import torch
for batch in loader:
    optimizer.zero_grad()
    trainer(batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1.0)
    if torch.isnan(norm):
        for param in trainer.parameters():
            param.grad.zero_()
        continue
    optimizer.step()
""",
    """
import torch
for batch in loader:
    trainer(batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1.0)
    skip = False
    if not torch.isfinite(norm):
        skip = True
        for param in trainer.parameters():
            param.grad.zero_()
    if not skip:
        optimizer.step()
""",
    """
import torch
for batch in loader:
    trainer(batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1.0)
    if torch.isnan(norm):
        optimizer.zero_grad()
    optimizer.step()
""",
]
