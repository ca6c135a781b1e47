"""Lines of the program that compute a moving average of weights and throw the result away, by its source alone.

Three forms: a loop over weights binds the average to a variable of the loop, a call that is not in place is a statement
by itself, or the average is put into the dictionary of a state that is loaded nowhere.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from ...tensors.foreign_objects import getattr, isinstance
from ..program_frames import frames_of_program, is_of_library

_MAX_FILES, _MAX_BYTES = 400, 1 << 19
_WEIGHTS = frozenset({"parameters", "named_parameters", "state_dict", "buffers", "named_buffers"})
_COMBINES = frozenset({"add", "lerp", "mul", "sub", "addcmul"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def averages_thrown_away() -> str:
    """The first such line in the files of the program, as "file:line"; nothing where there is none."""
    for path in _files_of_program():
        if line := _line_in(path, path.stat().st_mtime_ns):
            return f"{path}:{line}"
    return ""


def modules_of_program() -> list[ModuleType]:
    """The modules that are of no library."""
    found = []
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__") if type(module) is ModuleType else None
        if isinstance(file, str) and file.endswith(".py") and not is_of_library(file):
            found.append(module)
    return found[:_MAX_FILES]


def _files_of_program() -> Iterator[Path]:
    """Of the modules whose functions run now, and of those whose names these use."""
    used = set[str]()
    for frame in frames_of_program():
        used.add(str(frame.f_globals.get("__name__")))
        for value in list(frame.f_globals.values()):
            name = value.__name__ if type(value) is ModuleType else getattr(value, "__module__", None)
            used.add(name if isinstance(name, str) else "")
    for file in sorted({str(module.__file__) for module in modules_of_program() if module.__name__ in used}):
        path = Path(file)
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            yield path


@lru_cache(maxsize=_MAX_FILES)
def _line_in(path: Path, _changed: int) -> int:
    text = path.read_text(errors="replace")
    return line_of_average(text) if any(word in text for word in _WEIGHTS) else 0


def line_of_average(source: str) -> int:
    """The first line of this source that computes an average of weights without effect; 0 where there is none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return 0
    lines = []
    for function in ast.walk(tree):
        if isinstance(function, _Function):
            lines += [found.lineno for found in _without_effect(function)]
    return min(lines, default=0)


def _without_effect(function: _Function) -> Iterator[ast.stmt]:
    for loop in _statements(function.body):
        if not isinstance(loop, ast.For) or not _WEIGHTS & {*_attributes(loop.iter)}:
            continue
        drawn, body = _names(loop.target), list(_statements(loop.body))
        for statement in body:
            bound = drawn.union(*(_bound_by(each) for each in body if each.lineno < statement.lineno))
            if (
                _is_rebound(statement, bound, drawn, loop)
                or _is_discarded(statement, bound)
                or _is_put_into_a_state(statement, drawn, function)
            ):
                yield statement


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of blocks inside of it, but not those of functions and classes there."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, block, []))


def _is_rebound(statement: ast.stmt, bound: set[str], drawn: set[str], loop: ast.For) -> bool:
    """`s = decay * s + (1 - decay) * p`, and `s` is read no more."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or target.id not in bound or not _combines(statement.value):
        return False
    used, end = _names(statement.value), statement.end_lineno or statement.lineno
    read_later = any(isinstance(n, ast.Name) and n.id == target.id and n.lineno > end for n in ast.walk(loop))
    return target.id in used and bool((used & bound) - {target.id}) and bool(used & drawn) and not read_later


def _is_discarded(statement: ast.stmt, bound: set[str]) -> bool:
    """`s.mul(decay).add(p, alpha=1 - decay)`, without an underscore."""
    if not isinstance(statement, ast.Expr) or not _combines(statement.value):
        return False
    in_place = any(name.endswith("_") for name in _attributes(statement.value))
    return len(_names(statement.value) & bound) >= 2 and not in_place


def _is_put_into_a_state(statement: ast.stmt, drawn: set[str], function: _Function) -> bool:
    """`state[name] = decay * state[name] + (1 - decay) * p` where `state = average.state_dict()` is used no more."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not _combines(statement.value):
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return False
    state = target.value.id
    if state not in _names(statement.value) or not _names(statement.value) & drawn or isinstance(function, ast.Module):
        return False
    made = [each for each in ast.walk(function) if isinstance(each, ast.Assign) and _is_a_state(each.value)]
    if not any(isinstance(name, ast.Name) and name.id == state for each in made for name in each.targets):
        return False
    uses = [each for each in ast.walk(function) if isinstance(each, ast.Name) and each.id == state]
    items = [
        each for each in ast.walk(function) if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name)
    ]
    return len(uses) == 1 + sum(each.value.id == state for each in items if isinstance(each.value, ast.Name))


def _is_a_state(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "state_dict"


def _combines(value: ast.expr) -> bool:
    """Whether it is a sum or difference of something weighed, or a call that makes one of tensors."""
    if isinstance(value, ast.Call):
        made = isinstance(value.func, ast.Attribute) and value.func.attr in _COMBINES
    else:
        made = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub)
    parts = list(ast.walk(value))
    weighed = any(
        isinstance(part, ast.Mult) or (isinstance(part, ast.keyword) and part.arg == "alpha") for part in parts
    )
    return made and (weighed or bool({"mul", "lerp"} & {*_attributes(value)}))


def _bound_by(statement: ast.stmt) -> set[str]:
    return {
        name for target in getattr(statement, "targets", []) if isinstance(target, ast.Name) for name in [target.id]
    }


def _attributes(node: ast.AST) -> Iterator[str]:
    return (each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute))


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
