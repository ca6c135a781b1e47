"""A value with several uses is bounded once, before all of them: a bound at one use leaves the others as they were.

The logarithm of a variance that is not positive is one such place: with a floor under the logarithm alone the same
line goes on dividing by what is negative, and the loss falls without limit.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ...interventions.call_arguments import BoundedName, tiny
from ..remedy_context import Proposal, RemedyContext

DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)


@dataclass(frozen=True, slots=True)
class SharedValue:
    """The name of the origin's argument, from its statement to the end of the function that it is in."""

    name: str
    first_line: int
    last_line: int
    statement: str
    divides: bool
    """Whether another use of it is under a fraction."""


def shared_value(file: str, line: int, call: str) -> SharedValue | None:
    """The argument of this call, where it is a plain name that is used again from there on; None where it is not."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    homes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module)]
    inside = [node for node in homes if isinstance(node, ast.Module) or node.lineno <= line <= (node.end_lineno or 0)]
    home = max(inside, key=lambda node: getattr(node, "lineno", 0))
    statement = _statement(home, line)
    if statement is None or statement.end_lineno is None:
        return None
    named = [argument for node in ast.walk(statement) if (argument := _argument(node, call, line)) is not None]
    if len({node.id for node in named}) != 1:
        return None
    later = [node for node in ast.walk(home) if getattr(node, "lineno", 0) >= statement.lineno]
    others = [n for n in later if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id == named[0].id]
    if len(others) <= len(named):
        return None
    last = max(node.lineno for node in others)
    fractions = [n.right for n in later if isinstance(n, ast.BinOp) and isinstance(n.op, DIVISIONS)]
    under = {n.id for each in fractions for n in ast.walk(each) if isinstance(n, ast.Name)}
    text = "\n".join(source.splitlines()[statement.lineno - 1 : statement.end_lineno])
    return SharedValue(named[0].id, statement.lineno, last, text, named[0].id in under)


def _statement(home: ast.AST, line: int) -> ast.stmt | None:
    """The innermost simple statement that this line belongs to."""
    found = [
        node for node in ast.walk(home)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]  # fmt: skip
    return max(found, key=lambda node: node.lineno, default=None)


def _argument(node: ast.AST, call: str, line: int) -> ast.Name | None:
    """`p` of `torch.log(p)` and of `p.log()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != call:
        return None
    if not node.lineno <= line <= (node.end_lineno or 0):
        return None
    owner = node.func.value
    module = isinstance(owner, ast.Name) and owner.id in ("torch", "F")
    argument = node.args[0] if module and node.args else owner if not module and not node.args else None
    return argument if isinstance(argument, ast.Name) else None


def propose_bounds(context: RemedyContext, code: str) -> Iterator[Proposal]:
    """The value bounded before all its uses, where the bad one is negative or also divides; most careful first."""
    named = context.exam.named if context.exam is not None else None
    if named is None or named.where is None:
        return
    file, line = named.where
    shared = shared_value(file, line, context.call)
    if shared is None or not (context.evidence.facts.argument_negative or shared.divides):
        return
    name, lines = shared.name, (shared.first_line, shared.last_line)
    bounds: list[tuple[str, str, Callable[[torch.Tensor], torch.Tensor], str]] = [
        (f"{name} bounded below, once and before all its uses", f"{name}.clamp_min(1e-06)", _bounded, "close")
    ]
    if context.evidence.facts.argument_negative:
        bounds.append(
            (f"{name} made positive, once and before all its uses",
             f"torch.nn.functional.softplus({name}) + 1e-06", _positive, "behavioural")
        )  # fmt: skip
    for change, written, bound, safety in bounds:
        yield Proposal(
            code=code,
            slug="eps",
            change=change,
            make=lambda bound=bound: BoundedName(file, lines, name, bound),  # type: ignore[misc]
            safety=safety,
            code_change=_lines(shared, f"{name} = {written}"),
            own_line=True,
            in_proportion=True,
            if_needed=safety != "close",
        )


def _lines(shared: SharedValue, before: str) -> str:
    """The statement with a line in front of it."""
    rows = shared.statement.splitlines()
    indent = len(rows[0]) - len(rows[0].lstrip())
    return "\n".join([before, *(row[indent:] if not row[:indent].strip() else row.lstrip() for row in rows)])


def _bounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clamp_min(tiny(tensor))


def _positive(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(tensor) + tiny(tensor)
