"""The part of somebody's loop between the model's call and backward, cut out so that it can be run again.

A loop that is left as it is computes its loss in its own lines: `out = model(x)`, `loss = criterion(out, y)`,
`loss.backward()`. Its source and its names are there, so those lines can be run a second time, in a namespace of their
own, on the batch of the step that failed. Only lines that compute are taken: assignments to names, and in-place tensor
calls on what was assigned here. Lines that exist for their effects (printing, logging, appending, counting) are left
out, so running the slice again changes nothing that the loop can see. What cannot be cut this way is not cut, and
whoever runs a slice compares its loss with the one the loop had.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch import Tensor

_NO_VALUE = (ast.Pass, ast.Assert, ast.Delete, ast.Return, ast.Break, ast.Continue, ast.Raise)
_NEVER = (
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.Global,
    ast.Nonlocal,
    ast.Try,
    ast.Match,
    ast.AsyncFor,
    ast.AsyncWith,
)


@dataclass(frozen=True, slots=True)
class LoopSlice:
    """Some lines of one function or script, compiled alone. `loss` names what backward was called on."""

    owner: CodeType
    code: CodeType
    reads: tuple[str, ...]
    loss: str
    first_line: int
    last_line: int
    filename: str
    scaled: bool = False
    """Whether backward was called on `scaler.scale(loss)`; `loss` is the unscaled one."""

    def take(self, frame: FrameType) -> dict[str, Any]:
        """The values that the slice reads, as they are in this frame now.

        Best taken at the model's first call: what the lines themselves change still has its old value then.
        """
        here, everywhere = frame.f_locals, frame.f_globals
        return {name: here[name] if name in here else everywhere[name]
                for name in self.reads if name in here or name in everywhere}  # fmt: skip

    def run(self, taken: Mapping[str, Any], module_globals: Mapping[str, Any]) -> Tensor:
        """The loss, computed again by the loop's own lines. Raises what they raise."""
        names = {**module_globals, **taken}
        exec(self.code, names)
        loss: Tensor = names[self.loss]
        return loss


def cut(frame: FrameType, first_line: int, last_line: int, loss: Tensor) -> LoopSlice | str:
    """The slice of this frame's lines from the one that led to the model's call to the one that led to backward.

    A string says why there is none. Reads and parses the source: once for each place, never on a step.
    """
    filename = frame.f_code.co_filename
    source = "".join(linecache.getlines(filename, frame.f_globals))
    if not source:
        return f"the source of {filename} is not at hand"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return f"the source of {filename} cannot be parsed"
    body = _body_of(tree, frame.f_code)
    if body is None:
        return f"the lines of {frame.f_code.co_name} are not where its source says"
    between = _between(body, first_line, last_line)
    if between is None:
        return "the model's call and backward are not in one block of the loop"
    before, last = between
    name = _name_of(loss, frame)
    receiver = None
    scaled = False
    if name is None:
        receiver, scaled = _receiver(last)
        if receiver is None:
            return "the loss has no name in the loop"
    kept: list[ast.stmt] = []
    made: set[str] = set()
    for statement in before:
        pure = _pure(statement, made)
        if isinstance(pure, str):
            return pure
        kept += pure
    if receiver is not None:
        name = "_steady_loss"
        kept.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], receiver), last))
    assert name is not None
    module = ast.fix_missing_locations(ast.Module(kept, []))
    reads = tuple(sorted(_reads(kept)))
    if name not in _assigned(kept):
        return "the loss is computed outside of these lines"
    return LoopSlice(
        frame.f_code, compile(module, filename, "exec"), reads, name, first_line, last_line, filename, scaled
    )


def _body_of(tree: ast.Module, code: CodeType) -> list[ast.stmt] | None:
    """The statements of the function or script that `code` was compiled from."""
    if code.co_name == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if code.co_firstlineno in (start, node.lineno):
                return node.body
    return None


def _between(body: list[ast.stmt], first: int, last: int) -> tuple[list[ast.stmt], ast.stmt] | None:
    """The statements of the innermost block that holds both lines: those before backward's own, and that one."""
    starts = [statement for statement in body if _holds(statement, first)]
    ends = [statement for statement in body if _holds(statement, last)]
    if not starts or not ends:
        return None
    if starts[0] is ends[0]:
        for block in _blocks(starts[0]):
            if (found := _between(block, first, last)) is not None:
                return found
        # `loss = model(x).mean().backward()` or the like: one statement holds both, and nothing stands before it.
        return ([], starts[0]) if isinstance(starts[0], ast.Expr) else None
    lower, upper = body.index(starts[0]), body.index(ends[0])
    return (body[lower:upper], ends[0]) if lower < upper else None


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    return [block for field in ("body", "orelse", "finalbody") if (block := getattr(statement, field, None))]


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _pure(statement: ast.stmt, made: set[str]) -> list[ast.stmt] | str:
    """What of a statement computes, or why it cannot be told."""
    if any(isinstance(node, _NEVER) for node in ast.walk(statement)):
        return f"line {statement.lineno} cannot be run on its own"
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return _pure_assignment(statement, made)
    if isinstance(statement, ast.Expr):
        return [statement] if _writes_in_place(statement.value, made) else []
    if isinstance(statement, ast.FunctionDef):
        made.add(statement.name)
        return [statement]
    if isinstance(statement, ast.With | ast.If | ast.For | ast.While):
        return _pure_block(statement, made)
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [statement]
    if isinstance(statement, _NO_VALUE):
        return []
    return f"line {statement.lineno} cannot be run on its own"


def _pure_assignment(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, made: set[str]) -> list[ast.stmt] | str:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return []
    places = [node for target in targets for node in _leaves(target)]
    if all(isinstance(place, ast.Name) for place in places):
        made.update(place.id for place in places if isinstance(place, ast.Name))
        return [statement]
    roots = [_root(place) for place in places]
    if all(isinstance(place, ast.Name) or root in made for place, root in zip(places, roots, strict=True)):
        return [statement]  # an entry of a tensor or a dictionary that was made here
    if any(isinstance(place, ast.Subscript) for place in places):
        return f"line {statement.lineno} writes into something that was there before"
    return []  # an attribute kept for later: left out, and the loss will tell if it mattered


def _pure_block(statement: ast.With | ast.If | ast.For | ast.While, made: set[str]) -> list[ast.stmt] | str:
    if isinstance(statement, ast.For):
        made.update(node.id for node in _leaves(statement.target) if isinstance(node, ast.Name))
    fields: dict[str, list[ast.stmt]] = {}
    for field in ("body", "orelse"):
        kept: list[ast.stmt] = []
        for inner in getattr(statement, field, []):
            pure = _pure(inner, made)
            if isinstance(pure, str):
                return pure
            kept += pure
        fields[field] = kept
    if not fields["body"] and not fields["orelse"]:
        return []
    whole: dict[str, Any] = {field: getattr(statement, field, None) for field in statement._fields}
    whole["body"] = fields["body"] or [ast.copy_location(ast.Pass(), statement)]
    if "orelse" in whole:
        whole["orelse"] = fields["orelse"]
    made_again: ast.stmt = ast.copy_location(type(statement)(**whole), statement)
    return [made_again]


def _leaves(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [leaf for item in target.elts for leaf in _leaves(item)]
    return _leaves(target.value) if isinstance(target, ast.Starred) else [target]


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _writes_in_place(value: ast.expr, made: set[str]) -> bool:
    """`logits.masked_fill_(...)`: torch's way of saying that a call writes into its tensor."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    name = value.func.attr
    return name.endswith("_") and not name.startswith("_") and _root(value.func.value) in made


def _receiver(statement: ast.stmt) -> tuple[ast.expr | None, bool]:
    """`X` of a statement `X.backward()`, or of `scaler.scale(X).backward()`, and which of the two it is."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "backward"):
        return None, False
    made = value.func.value
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "scale" and made.args:
        return made.args[0], True
    return made, False


def _name_of(loss: Tensor, frame: FrameType) -> str | None:
    return next((name for name, value in frame.f_locals.items() if value is loss), None)


def _assigned(statements: list[ast.stmt]) -> set[str]:
    return {node.id for s in statements for node in ast.walk(s)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}  # fmt: skip


def _reads(statements: list[ast.stmt]) -> set[str]:
    """The names that are read before these lines themselves have made them."""
    needed: set[str] = set()
    made: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in made:
                needed.add(node.id)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                needed.add(node.target.id)
        if isinstance(statement, ast.Assign):
            made |= {leaf.id for target in statement.targets for leaf in _leaves(target) if isinstance(leaf, ast.Name)}
    return needed
