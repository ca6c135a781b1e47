"""The lines of a loop before the update, cut out so that they can be run again: what a program does to its gradients
by hand, such as a hand-written clip after backward, or gradients that no backward made."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from ...detect.loop.program_frames import variables_of
from ...detect.tensors.foreign_objects import getattr, isinstance
from .loop_slice import LoopSlice, blocks_of, body_of, computing, cut, names_read, statements_between


@dataclass(frozen=True, slots=True)
class LinesAfter:
    """Some lines, compiled alone, with the values that they read. Whoever runs them undoes what they change."""

    code: CodeType
    taken: Mapping[str, Any]
    module_globals: Mapping[str, Any]
    given: frozenset[str] = frozenset()
    """The names that they read before they have assigned them themselves."""

    def run(self, instead: Mapping[str, Any] | None = None) -> None:
        """Raises what they raise. `instead` are other values for names that they read."""
        exec(self.code, {**self.module_globals, **self.taken, **(instead or {})})


def lines_after(frame: FrameType, backward_line: int, step_line: int) -> LinesAfter | None:
    """The lines of this function after the one that led to backward, up to the one that led to the update; None where
    there are none, or where they cannot be run on their own. Reads and parses the source."""
    body = _body(frame)
    between = statements_between(body, backward_line, step_line) if body is not None else None
    return _compiled(frame, between[0][1:]) if between is not None else None


def no_loss(frame: FrameType) -> LoopSlice:
    """A slice that computes nothing but a loss of zero."""
    tree = ast.parse("torch.zeros((), requires_grad=True).backward()")
    code = compile(tree, "<no loss>", "exec")
    return LoopSlice(frame.f_code, code, ("torch",), frame.f_lineno, frame.f_lineno, frame.f_code.co_filename, tree)


def lines_before(frame: FrameType, step_line: int) -> Iterator[LinesAfter]:
    """The lines of a loop's body just before the one that led to the update, the shortest run of them first: those that
    can be run again because they assign nothing that they read. For gradients that are written by hand."""
    body = _body(frame)
    block = _block_with(body, step_line) if body is not None else []
    for first in reversed(range(len(block))):
        part = block[first:]
        found = None if assigns_what_it_reads(part) else _compiled(frame, part)
        if found is not None:
            yield found


def lines_behind(frame: FrameType, step_line: int) -> LinesAfter | None:
    """The lines behind the one that led to the update, up to the end of its block; None where there are none, or where
    they cannot be run on their own. Reads and parses the source."""
    body = _body(frame)
    return _compiled(frame, _rest_of_block(body, step_line)) if body is not None else None


def cut_before(frame: FrameType, line: int) -> Iterator[LoopSlice]:
    """The statements just before this line, in its innermost block, with it: the shortest run of them first, those that
    can be run again from what they read as it is now. Reads and parses the source."""
    body = _body(frame)
    for statement in reversed(_block_with(body, line) if body is not None else []):
        found = cut(frame, statement.lineno, line)
        if not isinstance(found, str) and not assigns_what_it_reads(found.tree.body):
            yield found


def computed_before(frame: FrameType, line: int, name: str) -> int | None:
    """The line before this one, in its block, that computed this variable last out of what it was itself: its value
    then is gone. None where there is none, or where that line only moved, shaped or cast it."""
    body = _body(frame)
    for statement in reversed(_block_with(body, line) if body is not None else []):
        names = _NamesInOrder.of([statement])
        if name not in names.made:
            continue
        value = statement.value if isinstance(statement, ast.Assign | ast.AugAssign) else None
        if value is None or name not in names.read_before:
            return None
        computes = isinstance(statement, ast.AugAssign) or any(isinstance(n, ast.BinOp) for n in ast.walk(value))
        return statement.lineno if computes else None
    return None


def assigns_what_it_reads(statements: list[ast.stmt]) -> bool:
    """Whether statements assign a name that they read before: what they read then is gone."""
    names = _NamesInOrder.of(statements)
    return bool(names.made & names.read_before)


class _NamesInOrder(ast.NodeVisitor):
    """Which names some statements assign, and which they read before they have assigned them."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.read_before: set[str] = set()

    @classmethod
    def of(cls, statements: list[ast.stmt]) -> _NamesInOrder:
        names = cls()
        for statement in statements:
            names.visit(statement)
        return names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read_before |= {node.id} - self.made
        else:
            self.made.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        for part in (node.value, *node.targets):
            self.visit(part)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read_before |= {node.target.id} - self.made
        for part in (node.value, node.target):
            self.visit(part)

    def visit_For(self, node: ast.For) -> None:
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def generic_visit(self, node: ast.AST) -> None:
        generators = getattr(node, "generators", ())  # of a comprehension, whose names are its own
        before = set(self.made)
        for generator in generators:
            self.visit(generator.iter)
            self.visit(generator.target)
        super().generic_visit(node)
        if generators:
            self.made = before


def _body(frame: FrameType) -> list[ast.stmt] | None:
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except (SyntaxError, ValueError):
        return None
    return body_of(tree, frame.f_code)


def _block_with(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """The statements before the one at this line, in the innermost block around it."""
    for place, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            inner = [_block_with(block, line) for block in blocks_of(statement) if _has(block, line)]
            return inner[0] if inner else body[:place]
    return []


def _rest_of_block(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """The statements behind the one at this line, in the innermost block around it."""
    for place, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            inner = [_rest_of_block(block, line) for block in blocks_of(statement) if _has(block, line)]
            return inner[0] if inner else body[place + 1 :]
    return []


def _has(block: list[ast.stmt], line: int) -> bool:
    return any(each.lineno <= line <= (each.end_lineno or each.lineno) for each in block)


def _compiled(frame: FrameType, statements: list[ast.stmt]) -> LinesAfter | None:
    made: set[str] = set()
    kept: list[ast.stmt] = []
    for statement in statements:
        pure = computing(statement, made, effects=True)
        if isinstance(pure, str):
            return None
        kept += pure
    if not kept:
        return None
    code = compile(ast.fix_missing_locations(ast.Module(kept, [])), frame.f_code.co_filename, "exec")
    here, everywhere = variables_of(frame), frame.f_globals
    names = [name for name in names_read(kept) if name in here or name in everywhere]
    taken = {name: here.get(name, everywhere.get(name)) for name in names}
    return LinesAfter(code, taken, everywhere, frozenset(_NamesInOrder.of(kept).read_before))
