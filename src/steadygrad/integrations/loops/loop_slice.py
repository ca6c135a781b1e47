"""The part of a training loop between the model's call and backward, cut out so that it can be run again.

A loop that is left as it is computes its loss in its own lines: `out = model(x)`, `loss = criterion(out, y)`,
`loss.backward()`. Its source and its names are there, so those lines can be run a second time, in their own namespace,
on the batch of the step that failed. The run ends where backward is called, and the tensor it is called on is the loss:
so it does not matter how the loop names or keeps it (`self.loss`, `losses["total"]`), nor which function calls
backward. Lines that exist for their effects only (printing, logging, counting) are left out. What cannot be cut this
way is not cut, and the caller compares the loss of a slice with the one that the loop had.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...detect.loop.program_frames import variables_of
from .batch_names import batch_names_of, drawn_names, flat_names, is_next

_NO_VALUE = (ast.Pass, ast.Assert, ast.Delete, ast.Return, ast.Break, ast.Continue, ast.Raise)
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_NEVER = (ast.Await, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal, ast.AsyncFor, ast.AsyncWith)
_LEFT_OUT = frozenset({
    "print", "zero_grad", "step", "log", "info", "debug", "warning", "write", "write_scalar", "add_scalar",
    "add_scalars", "set_postfix", "set_description", "log_metrics", "log_dict", "log_metric", "backward", "eval",
    "train", "save", "close", "flush",
})  # fmt: skip
"""Calls that stand in a line for their effect; they are left out even where other effects are repeated and undone."""
_LOSS = "_steady_loss"


class BackwardReached(BaseException):
    """Backward was called while lines are run again. Not an Exception, so that no handler of the loop takes it."""

    def __init__(self, loss: Tensor) -> None:
        super().__init__("backward was reached")
        self.loss = loss


@dataclass(frozen=True, slots=True)
class LoopSlice:
    """Some lines of one function or script, compiled alone."""

    owner: CodeType
    code: CodeType
    reads: tuple[str, ...]
    first_line: int
    last_line: int
    filename: str
    tree: ast.Module
    """What `code` was compiled from."""
    scaled: bool = False
    """Whether backward was called on `scaler.scale(loss)`; the slice gives the unscaled loss."""
    batch_names: tuple[Any, ...] = ()
    """The names that the loop gives to the parts of a batch of its loader, nested as in its `for`; () if unknown."""
    loop_names: tuple[str, ...] = ()
    """What the loops around these lines count or go through: a change means that the next round has begun."""

    def take(self, frame: FrameType) -> dict[str, Any]:
        """The values that the slice reads, as they are in this frame now.

        Best taken at the model's first call: what the lines themselves change still has its old value then.
        """
        here, everywhere = variables_of(frame, self.reads), frame.f_globals
        return {name: here[name] if name in here else everywhere[name]
                for name in self.reads if name in here or name in everywhere}  # fmt: skip

    def run(self, taken: Mapping[str, Any], module_globals: Mapping[str, Any], passes: int = 0) -> Tensor:
        """The loss, computed again by the loop's own lines. Raises what they raise. So many `passes` of backward come
        before: they and the updates after them are passed over."""
        names = {**module_globals, **taken}
        with _stopped_at_backward(passes):
            try:
                exec(self.code, names)
            except BackwardReached as reached:
                return reached.loss
        if _LOSS not in names:
            raise RuntimeError("backward was not reached when the lines were run again")
        loss: Tensor = names[_LOSS]
        return loss


def _without_parameters(optimizer: Any) -> Any:
    """The same optimizer with nothing to update. An optimizer that cannot do without raises, which ends the run."""
    same = object.__new__(type(optimizer))
    groups = [{**group, "params": []} for group in optimizer.param_groups]
    same.__dict__ = {**optimizer.__dict__, "param_groups": groups, "state": dict(optimizer.state)}
    return same


@contextlib.contextmanager
def _stopped_at_backward(passes: int) -> Iterator[None]:
    """Inside, a backward of this thread ends the run, after so many that do nothing; no optimizer makes an update."""
    thread, left = threading.get_ident(), [passes]
    tensors_own: Any = Tensor.backward
    functional: Any = torch.autograd.backward

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return reached(self) if threading.get_ident() == thread else tensors_own(self, *args, **kwargs)

    def backward_of(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        one = tensors if isinstance(tensors, Tensor) else next(iter(tensors))
        return reached(one) if threading.get_ident() == thread else functional(tensors, *args, **kwargs)

    def reached(loss: Tensor) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise BackwardReached(loss)

    def step(optimizer: Any, args: Any, kwargs: Any) -> Any:
        return ((_without_parameters(optimizer), *args[1:]), kwargs) if threading.get_ident() == thread else None

    Tensor.backward, torch.autograd.backward = backward, backward_of  # type: ignore[method-assign]
    no_update = register_optimizer_step_pre_hook(step)
    try:
        yield
    finally:
        no_update.remove()
        Tensor.backward, torch.autograd.backward = tensors_own, functional  # type: ignore[method-assign]


@contextlib.contextmanager
def stopped_at_return(function: CodeType, name: str) -> Iterator[None]:
    """Inside, the run ends where this function returns, and its variable `name` is the loss: for a function that
    computes a loss and returns None where it is not finite."""
    before = sys.getprofile()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is function and isinstance(frame.f_locals.get(name), Tensor):
            raise BackwardReached(frame.f_locals[name])

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def cut(
    frame: FrameType, first_line: int | None, last_line: int, *, with_effects: bool = False, from_start: bool = False
) -> LoopSlice | str:  # fmt: skip
    """The slice of this frame's lines from the one that led to the model's call to the one that led to backward.

    Without `first_line`: from the beginning of the innermost loop's body, or `from_start` of a function that a loop
    calls: never a whole program. `with_effects` keeps
    calls whose result is not used, such as `scores.append(...)`: for a caller that undoes them. A string says why there
    is no slice. Reads and parses the source: once for each place, never on a step.
    """
    filename = frame.f_code.co_filename
    source = "".join(linecache.getlines(filename, frame.f_globals))
    if not source:
        return f"the source of {filename} cannot be read"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return f"the source of {filename} cannot be parsed"
    body = body_of(tree, frame.f_code)
    if body is None:
        return f"the lines of {frame.f_code.co_name} are not where its source says"
    whole, batch_names = body, ()
    if first_line is None:
        body, batch_names = _innermost_loop(body, last_line)
        if body is whole and not from_start:
            return "backward is not called in a loop here"
        # Functions and classes of a script that are defined before its loop are there already.
        between = statements_between(body, body[0].lineno, last_line)
    else:
        between = statements_between(body, first_line, last_line)
    if between is None:
        return "the model's call and backward are not in one block of the loop"
    before, endings = between
    last = next((each for each in endings if _calls_backward(each)), endings[-1])
    if _calls_backward(last):  # of several statements on one line, those before it are lines like any other
        before, endings = [*before, *endings[: endings.index(last)]], [last]
    kept: list[ast.stmt] = []
    made = set(flat_names(batch_names))
    for statement in before:
        pure = computing(statement, made, with_effects)
        if isinstance(pure, str):
            return pure
        kept += pure
    unscaled = next((found for each in endings if (found := _unscaled(each)) is not None), None)
    if unscaled is not None:
        endings = [ast.copy_location(ast.Assign([ast.Name(_LOSS, ast.Store())], unscaled), last)]
    elif any(isinstance(node, _NEVER) for each in endings for node in _walk_here(each)):
        return f"line {last.lineno} cannot be run on its own"
    if not with_effects:
        kept = _used(kept, endings)
    module = ast.fix_missing_locations(ast.Module([*kept, *(s for each in endings for s in _statements(each))], []))
    reads = tuple(sorted(names_read([*kept, *endings]) | set(flat_names(batch_names))))
    try:
        code = compile(module, filename, "exec")
    except SyntaxError:
        return f"line {last.lineno} cannot be run on its own"
    start = first_line if first_line is not None else body[0].lineno
    rounds = tuple(_loop_names(whole, start, last_line))
    scaled = unscaled is not None
    return LoopSlice(frame.f_code, code, reads, start, last_line, filename, module, scaled, batch_names, rounds)


def _used(kept: list[ast.stmt], endings: list[ast.stmt]) -> list[ast.stmt]:
    """Without assignments whose result these lines do not read, such as `total += loss.detach()`."""
    while True:
        loads = Counter(text for statement in [*kept, *endings] for text in _loads(statement))
        fewer = _without_unused(kept, loads)
        if [ast.dump(statement) for statement in fewer] == [ast.dump(statement) for statement in kept]:
            return kept
        kept = fewer


def _without_unused(body: list[ast.stmt], loads: Counter[str]) -> list[ast.stmt]:
    left: list[ast.stmt] = []
    for statement in body:
        if _is_unused(statement, loads):
            continue
        fields: dict[str, Any] = {name: getattr(statement, name, None) for name in statement._fields}
        for name in ("body", "orelse", "finalbody"):
            if isinstance(fields.get(name), list) and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                inner = _without_unused(fields[name], loads)
                empty = name == "body" and fields[name] and not inner
                fields[name] = [ast.copy_location(ast.Pass(), fields[name][0])] if empty else inner
        left.append(ast.copy_location(type(statement)(**fields), statement))
    return left


def _is_unused(statement: ast.stmt, loads: Counter[str]) -> bool:
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    places = [leaf for target in targets for leaf in _leaves(target)]
    # An attribute that is set may be read by a function that is called; one that is added to is a counter.
    if not isinstance(statement, ast.AugAssign) and not all(isinstance(place, ast.Name) for place in places):
        return False
    own = Counter(_loads(statement))
    return all(loads[text] <= own[text] for text in (ast.unparse(place) for place in places))


def _loads(statement: ast.AST) -> Iterator[str]:
    """What a statement reads, as text. The target of `x += 1` is not read by anything else."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield ast.unparse(node)


def _statements(ending: ast.stmt) -> list[ast.stmt]:
    """`return loss.backward()` of a function: its value is computed, and there is nothing to return to."""
    if isinstance(ending, ast.Return):
        return [ast.copy_location(ast.Expr(ending.value), ending)] if ending.value is not None else []
    return [ending]


def body_of(tree: ast.Module, code: CodeType) -> list[ast.stmt] | None:
    """The statements of the function or script that `code` was compiled from."""
    if code.co_name == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if code.co_firstlineno in (start, node.lineno):
                return node.body
    return None


def loops_around(code: CodeType, line: int) -> bool:
    """Whether a line of a function or script is in a loop of it. Reads and parses the source."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return False
    body = body_of(tree, code)
    return body is not None and bool(body) and _innermost_loop(body, line)[0] is not body


@functools.lru_cache(maxsize=64)
def handles_errors(code: CodeType, line: int) -> bool:
    """Whether a line of a function or script is in a `try` with handlers. Reads and parses the source once."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return False
    inside = [each for statement in body_of(tree, code) or () for each in ast.walk(statement)]
    tries = [each for each in inside if isinstance(each, ast.Try) and each.handlers]
    return any(_holds(statement, line) for each in tries for statement in each.body)


def _innermost_loop(body: list[ast.stmt], line: int) -> tuple[list[ast.stmt], tuple[Any, ...]]:
    """The statements of the innermost loop around a line, and what it calls its batch; else the body itself."""
    for statement in body:
        if not _holds(statement, line) or isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        inner: list[ast.stmt] = body
        names: tuple[Any, ...] = ()
        if isinstance(statement, ast.For | ast.While) and any(_holds(each, line) for each in statement.body):
            inner = statement.body
            names = batch_names_of(statement) if isinstance(statement, ast.For) else ()
        for block in blocks_of(statement):
            if any(_holds(each, line) for each in block):
                found, more = _innermost_loop(block, line)
                if found is not block:
                    return found, more
        return inner, names or drawn_names(inner, line)
    return body, ()


def _loop_names(body: list[ast.stmt], first: int, last: int) -> Iterator[str]:
    """The targets of the `for` loops whose bodies hold both lines."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) or not _holds(statement, last):
            continue
        for block in blocks_of(statement):
            if any(_holds(each, first) for each in block) and any(_holds(each, last) for each in block):
                if isinstance(statement, ast.For) and block is statement.body:
                    yield from (leaf.id for leaf in _leaves(statement.target) if isinstance(leaf, ast.Name))
                yield from _loop_names(block, first, last)


def statements_between(body: list[ast.stmt], first: int, last: int) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
    """The statements of the innermost block that holds both lines: those before backward's line, and those of it. Of
    several on one line, backward ends the run."""
    starts = [statement for statement in body if _holds(statement, first)]
    ends = [statement for statement in body if _holds(statement, last)]
    if not starts or not ends:
        return None
    if starts[0] is ends[0]:
        for block in blocks_of(starts[0]):
            if (found := statements_between(block, first, last)) is not None:
                return found
        # `criterion(model(x), y).backward()` or a call that does it all: one line holds both.
        return ([], ends) if isinstance(starts[0], ast.Expr | ast.Assign | ast.Return | ast.AugAssign) else None
    lower, upper = body.index(starts[0]), body.index(ends[0])
    return (body[lower:upper], ends) if lower < upper else None


def blocks_of(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [block for field in ("body", "orelse", "finalbody") if (block := getattr(statement, field, None))]
    parts = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    return [*blocks, *(part.body for part in parts)]


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _walk_here(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, not into functions that it defines."""
    yield statement
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _walk_here(child)


def computing(statement: ast.stmt, made: set[str], effects: bool) -> list[ast.stmt] | str:
    """What of a statement computes, or why it cannot be told."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        made.add(statement.name)
        return [statement]
    if any(isinstance(node, _NEVER) for node in _walk_here(statement)):
        return f"line {statement.lineno} cannot be run on its own"
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return _assignment(statement, made)
    if isinstance(statement, ast.Expr):
        return [statement] if _changes(statement.value, made) or (effects and _may_matter(statement.value)) else []
    if isinstance(statement, ast.With | ast.If | ast.For | ast.While | ast.Try | ast.Match):
        return _block(statement, made, effects)
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [statement]
    if isinstance(statement, _NO_VALUE):
        return []
    return f"line {statement.lineno} cannot be run on its own"


def _assignment(statement: ast.Assign | ast.AnnAssign | ast.AugAssign, made: set[str]) -> list[ast.stmt] | str:
    """Assignments are kept, also to attributes and entries: whoever runs the slice undoes what they change."""
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return []
    if statement.value is not None and is_next(statement.value):
        drawn = [leaf for target in getattr(statement, "targets", []) for leaf in _leaves(target)]
        names = {leaf.id for leaf in drawn if isinstance(leaf, ast.Name)}
        if names and names <= made:
            return []  # the batch is given by name
        return f"line {statement.lineno} takes the next item of an iterator"
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    made.update(leaf.id for target in targets for leaf in _leaves(target) if isinstance(leaf, ast.Name))
    return [statement]


def _block(statement: Any, made: set[str], effects: bool) -> list[ast.stmt] | str:
    if isinstance(statement, ast.For):
        made.update(node.id for node in _leaves(statement.target) if isinstance(node, ast.Name))
    whole: dict[str, Any] = {field: getattr(statement, field, None) for field in statement._fields}
    anything = False
    for field in ("body", "orelse", "finalbody"):
        kept = _computing_all(getattr(statement, field, None) or [], made, effects)
        if isinstance(kept, str):
            return kept
        if field in whole:
            whole[field] = kept
            anything = anything or bool(kept)
    for field in ("handlers", "cases"):
        parts = []
        for part in getattr(statement, field, None) or []:
            kept = _computing_all(part.body, made, effects)
            if isinstance(kept, str):
                return kept
            fields = {name: getattr(part, name, None) for name in part._fields}
            if field == "handlers" and isinstance(part.body[-1], _LEAVES):
                kept = [*kept, ast.copy_location(ast.Raise(), part.body[-1])]  # backward is not reached this way
            fields["body"] = kept or [ast.copy_location(ast.Pass(), part.body[0])]
            parts.append(ast.copy_location(type(part)(**fields), part) if field == "handlers" else type(part)(**fields))
            anything = anything or bool(kept)
        if field in whole:
            whole[field] = parts
    if not anything:
        return []
    if "body" in whole:
        whole["body"] = whole["body"] or [ast.copy_location(ast.Pass(), statement)]
    made_again: ast.stmt = ast.copy_location(type(statement)(**whole), statement)
    return [made_again]


def _computing_all(body: list[ast.stmt], made: set[str], effects: bool) -> list[ast.stmt] | str:
    kept: list[ast.stmt] = []
    for inner in body:
        pure = computing(inner, made, effects)
        if isinstance(pure, str):
            return pure
        kept += pure
    return kept


def _leaves(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [leaf for item in target.elts for leaf in _leaves(item)]
    return _leaves(target.value) if isinstance(target, ast.Starred) else [target]


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _changes(value: ast.expr, made: set[str]) -> bool:
    """A method of something that these lines made: `terms.append(...)`, `logits.masked_fill_(...)`."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    return value.func.attr not in _LEFT_OUT and _root(value.func.value) in made


def _may_matter(value: ast.expr) -> bool:
    """Whether a call whose result is not used may still matter to the loss: not one that prints or logs. A
    function that is called by its bare name is the program's own, whatever the name."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        return value.func.attr not in _LEFT_OUT
    return getattr(value.func, "id", "") != "print"


def _calls_backward(statement: ast.stmt) -> bool:
    """Whether a statement is a call of something named backward, not only of a function that calls it."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "backward"


def _unscaled(statement: ast.stmt) -> ast.expr | None:
    """`X` of a statement `scaler.scale(X).backward()`."""
    if not _calls_backward(statement):
        return None
    made = statement.value.func.value  # type: ignore[attr-defined]
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "scale" and made.args:
        return made.args[0]
    return None


def names_read(statements: list[ast.stmt]) -> set[str]:
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
