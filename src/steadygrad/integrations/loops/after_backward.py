"""The lines of a loop between backward and the update, cut out so that they can be run again: what a program does to
its gradients by hand, such as a clip of its own."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from .loop_slice import body_of, computing, names_read, statements_between


@dataclass(frozen=True, slots=True)
class LinesAfter:
    """Some lines, compiled alone, with the values that they read. Whoever runs them undoes what they change."""

    code: CodeType
    taken: Mapping[str, Any]
    module_globals: Mapping[str, Any]

    def run(self) -> None:
        """Raises what they raise."""
        exec(self.code, {**self.module_globals, **self.taken})


def lines_after(frame: FrameType, backward_line: int, step_line: int) -> LinesAfter | None:
    """The lines of this function after the one that led to backward, up to the one that led to the update; None where
    there are none, or where they cannot be run on their own. Reads and parses the source."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except (SyntaxError, ValueError):
        return None
    body = body_of(tree, frame.f_code)
    between = statements_between(body, backward_line, step_line) if body is not None else None
    if between is None:
        return None
    made: set[str] = set()
    kept: list[ast.stmt] = []
    for statement in between[0][1:]:
        pure = computing(statement, made, effects=True)
        if isinstance(pure, str):
            return None
        kept += pure
    if not kept:
        return None
    code = compile(ast.fix_missing_locations(ast.Module(kept, [])), frame.f_code.co_filename, "exec")
    here, everywhere = frame.f_locals, frame.f_globals
    names = [name for name in names_read(kept) if name in here or name in everywhere]
    return LinesAfter(code, {name: here.get(name, everywhere.get(name)) for name in names}, everywhere)
