"""A training script as its syntax tree, with the questions rules ask of it. Nothing is imported and nothing runs.

Names are resolved through imports (`F.softmax` is `torch.nn.functional.softmax`), values through the nearest
assignment above in the same function, parameters through the calls of the same file, command-line options through
their defaults, and conditions on CUDA as on a machine that has it. What cannot be resolved is
UNKNOWN, and a rule that meets it stays silent: a wrong alarm costs more than a missed one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ...records.errors import UsageError
from .gradient_paths import is_untracked, measures, only_looks


class Unknown:
    """A value that only running the script would tell."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Op:
    """One call as an operation on an operand: `torch.log(x)` and `x.log()` are both log of x."""

    name: str
    operand: ast.expr | None
    module: str
    call: ast.Call

    @property
    def of_torch(self) -> bool:
        """A torch function, or a method of something that may well be a tensor."""
        return self.module == "tensor" or self.module.split(".")[0] == "torch"


class Script:
    """One Python file. `path` is only a name: the text is what is judged."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.lines = text.splitlines()
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not Python that can be read: {error}. Nothing in it was checked.") from None
        self.nodes: list[ast.AST] = []
        self._asked: set[ast.AST] = set()
        self.parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, ast.AST] = {self.tree: self.tree}
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            self.nodes.append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self._scopes[child] = node if isinstance(node, FUNCTIONS) else self._scopes[node]
                stack.append(child)

    def line(self, number: int) -> str:
        """The text of a line, counted from 1."""
        return self.lines[number - 1].rstrip() if 0 < number <= len(self.lines) else ""

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported name stands for."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}".lstrip(".")
        return found

    def imports(self, *packages: str) -> bool:
        """Whether any of these packages, or a part of one, is imported."""
        return any(home == package or home.startswith(package + ".") for home in self._homes for package in packages)

    @cached_property
    def _homes(self) -> set[str]:
        found = set(self.aliases.values())
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        return found

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, in the order of the text."""
        found = [node for node in self.nodes if isinstance(node, ast.Call)]
        return sorted(found, key=_end)

    @cached_property
    def called(self) -> set[str]:
        """The last word of everything that is called: `step`, `zero_grad`, `get_peft_model`."""
        return {last_word(call.func) for call in self.calls}

    @cached_property
    def words(self) -> set[str]:
        """Every name, attribute and keyword in the file."""
        found: set[str] = set()
        for node in self.nodes:
            match node:
                case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word):
                    found.add(word)
                case ast.keyword(arg=str(word)):
                    found.add(word)
                case ast.alias(name=word):
                    found.add(word.split(".")[-1])
                case _:
                    pass
        return found

    def dotted(self, node: ast.AST) -> str:
        """The full name behind an expression (`torch.nn.functional.softmax`), or "" if it is not a name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def op(self, node: ast.AST | None) -> Op | None:
        """The call `node` is, as an operation; None for anything else."""
        if not isinstance(node, ast.Call):
            return None
        first = node.args[0] if node.args else keyword(node, "input")
        func = node.func
        if isinstance(func, ast.Name):
            home = self.aliases.get(func.id, "")
            return Op(home.split(".")[-1] or func.id, first, home.rpartition(".")[0], node)
        if not isinstance(func, ast.Attribute):
            return None
        root: ast.AST = func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.aliases:
            return Op(func.attr, first, self.dotted(func.value), node)
        return Op(func.attr, func.value, "tensor", node)

    # -- where

    def above(self, node: ast.AST) -> list[ast.AST]:
        """The nodes around `node`, innermost first."""
        found = []
        while node in self.parents:
            node = self.parents[node]
            found.append(node)
        return found

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, or the module, that `node` belongs to."""
        return self._scopes.get(node, self.tree)

    def untracked(self, node: ast.AST) -> bool:
        """Whether nothing that happens at `node` is differentiated."""
        return measures(self.path) or is_untracked(node, self.above(node))

    def untracked_for_looking(self, node: ast.AST) -> bool:
        """In a function that by its name only evaluates, samples or plots."""
        around = [each for each in self.above(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        return any(only_looks(each.name) for each in around)

    # -- values

    @cached_property
    def reads(self) -> dict[tuple[ast.AST, str], list[ast.AST]]:
        """Every place that reads a name, by its function and the name."""
        found: dict[tuple[ast.AST, str], list[ast.AST]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault((self.scope(node), node.id), []).append(node)
        return found

    @cached_property
    def _assigned(self) -> dict[tuple[ast.AST, str], list[tuple[int, ast.expr | None]]]:
        found: dict[tuple[ast.AST, str], list[tuple[int, ast.expr | None]]] = {}
        for node in self.nodes:
            targets: list[ast.expr] = []
            value: ast.expr | None = None
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
                targets, value = [node.target], node.value
            elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
                targets = [node.target]
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                targets = [node.optional_vars]
            for target in targets:
                whole = isinstance(target, ast.Name | ast.Attribute)
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        known = value if whole else None
                        found.setdefault((self.scope(node), part.id), []).append((part.lineno, known))
        for scope in self.nodes:
            if isinstance(scope, FUNCTIONS):
                for argument in _arguments(scope):
                    found.setdefault((scope, argument.arg), []).append((argument.lineno, None))
        for each in found.values():
            each.sort(key=lambda item: item[0])
        return found

    def value_of(self, node: ast.AST | None) -> ast.expr | None:
        """What a name was last given above its use in the same function; else what the module gives it once."""
        if not isinstance(node, ast.Name):
            return None
        here = [
            value
            for line, value in self._assigned.get((self.scope(node), node.id), [])
            if line < node.lineno and (value is None or not self._is_dead(value))
        ]
        if here:
            return here[-1]
        if (self.scope(node), node.id) in self._assigned and self.scope(node) is not self.tree:
            return None
        outside = self._assigned.get((self.tree, node.id), [])
        return outside[0][1] if len(outside) == 1 else None

    def follow(self, node: ast.expr | None, most: int = 4) -> ast.expr | None:
        """The expression behind a chain of names."""
        for _ in range(most):
            value = self.value_of(node)
            if value is None:
                return node
            node = value
        return node

    @cached_property
    def _functions(self) -> dict[str, ast.FunctionDef | None]:
        """Functions and methods by name; None where a name is taken more than once."""
        found: dict[str, ast.FunctionDef | None] = {}
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = None if node.name in found else node
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes of this file by name."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    def defining(self, name: str) -> tuple[Script, ast.ClassDef | None]:
        """The class of this name and the file that has it: this one, or one beside it that it is imported from."""
        if name in self.classes or name not in self._local_homes:
            return self, self.classes.get(name)
        path = Path(self.path).parent / f"{self._local_homes[name]}.py"
        try:
            beside = Script(str(path), path.read_text(encoding="utf-8"))
        except (OSError, ValueError, UsageError):
            return self, None
        # What this file passes to the class is what its parameters hold.
        beside.calls = sorted([*beside.calls, *(c for c in self.calls if last_word(c.func) == name)], key=_end)
        return beside, beside.classes.get(name)

    @cached_property
    def _local_homes(self) -> dict[str, str]:
        """Names imported from a module beside this file, by the module's name."""
        found = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and node.level <= 1:
                for alias in node.names:
                    found[alias.asname or alias.name] = node.module.split(".")[-1]
        return found

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method `node` belongs to."""
        return next((each for each in self.above(node) if isinstance(each, ast.ClassDef)), None)

    def attribute(self, owner: ast.ClassDef, name: str) -> ast.expr | None:
        """What a class gives to `self.name` (or `name` in its body), if it does so once on a branch that can run."""
        found = [value for value in self._attributes.get((owner, name), []) if not self._is_dead(value)]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _attributes(self) -> dict[tuple[ast.AST, str], list[ast.expr]]:
        """What every class assigns to its attributes."""
        found: dict[tuple[ast.AST, str], list[ast.expr]] = {}
        for node in self.nodes:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                owner = self.class_of(node)
                mine = isinstance(target, ast.Attribute) and last_word(target.value) == "self"
                body = isinstance(target, ast.Name) and self.parents.get(node) is owner
                if owner is not None and (mine or body):
                    found.setdefault((owner, last_word(target)), []).append(node.value)
        return found

    def _is_dead(self, node: ast.AST) -> bool:
        """On a branch whose condition is known, from what the text tells, to go the other way."""
        inner = node
        for each in self.above(node):
            if isinstance(each, FUNCTIONS):
                return False
            if isinstance(each, ast.If) and inner is not each.test:
                if each in self._asked:
                    return False  # the condition asks for what is assigned under it
                self._asked.add(each)
                known = self.literal(each.test)
                self._asked.discard(each)
                if isinstance(known, bool) and known is not any(inner is part for part in each.body):
                    return True
            inner = each
        return False

    def argument(self, node: ast.Name) -> ast.expr | None:
        """What a parameter of the function around `node` is given: the same in all calls of this file, or its default.
        A function that is called with different values has no single answer."""
        function = self.scope(node)
        if not isinstance(function, ast.FunctionDef):
            return None
        if function.name != "__init__" and self._functions.get(function.name) is not function:
            return None
        owner = self.parents.get(function)
        of_class = isinstance(owner, ast.ClassDef)
        called_as = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if node.id not in {*names, *(each.arg for each in function.args.kwonlyargs)}:
            return None
        place = names.index(node.id) - of_class if node.id in names else -1
        given = []
        for call in (each for each in self.calls if last_word(each.func) == called_as):
            if any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords):
                return None
            value = keyword(call, node.id) or (call.args[place] if 0 <= place < len(call.args) else None)
            given.append(value or default_of(function, node.id))
        given = given or [default_of(function, node.id)]
        same = {"" if each is None else ast.dump(each) for each in given}
        return given[0] if len(same) == 1 else None

    def given(self, call: ast.Call, *names: str) -> ast.expr | None:
        """The expression given to one of these keywords, also through `**options` where the text shows the mapping."""
        if plain := [value for name in names if (value := keyword(call, name)) is not None]:
            return plain[0]
        for spread in (each.value for each in call.keywords if each.arg is None):
            table = self.follow(spread)
            if isinstance(table, ast.Dict):
                for key, value in zip(table.keys, table.values, strict=True):
                    if key is not None and written(key) in names:
                        return value
            elif isinstance(table, ast.Call) and last_word(table.func) == "dict":
                return next((value for name in names if (value := keyword(table, name)) is not None), None)
        return None

    def returned_by(self, call: ast.expr | None) -> ast.expr | None:
        """What a function of this file gives back, if it has one return and its name is its own."""
        if not isinstance(call, ast.Call) or self.dotted(call.func).split(".")[0] in ("torch", "numpy", "math"):
            return None
        function = self._functions.get(last_word(call.func))
        if function is None:
            return None
        returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and self.scope(n) is function]
        return returns[0].value if len(returns) == 1 else None

    def literal(self, node: ast.AST | None, most: int = 8) -> Any:
        """The Python value of an expression, as far as the text tells; else UNKNOWN."""
        if node is None or most == 0:
            return UNKNOWN
        if (value := written(node)) is not UNKNOWN:
            return value
        match node:
            case ast.Name():
                return self.literal(self.value_of(node) or self.argument(node), most - 1)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if self.dotted(node).split(".")[0] != "torch":
                around = self.class_of(node) if owner == "self" else None
                kept = None if around is None else self.attribute(around, name)
                return self.options.get(name, UNKNOWN) if kept is None else self.literal(kept, most - 1)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = self.literal(test, most - 1)
                return self.literal(body if known else orelse, most - 1) if isinstance(known, bool) else UNKNOWN
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                known = self.literal(operand, most - 1)
                return not known if isinstance(known, bool) else UNKNOWN
            case ast.BoolOp(op=op, values=parts):
                every = [self.literal(part, most - 1) for part in parts]
                decisive = isinstance(op, ast.Or)
                if any(each is decisive for each in every):
                    return decisive
                return not decisive if all(isinstance(each, bool) for each in every) else UNKNOWN
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[right]):
                pair = self.literal(left, most - 1), self.literal(right, most - 1)
                if not all(isinstance(each, str | int | float) for each in pair):
                    return UNKNOWN
                return (pair[0] == pair[1]) is isinstance(op, ast.Eq)
            case ast.Call(func=func, args=parts):
                if self.dotted(func) == "torch.cuda.is_available":
                    return True  # what a script does on a GPU is what its author wants to know
                return self.literal(parts[0], most - 1) if self.dotted(func) == "torch.device" and parts else UNKNOWN
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                values = self.literal(left, most - 1), self.literal(right, most - 1)
                small = all(isinstance(value, int | float) and abs(value) < 100 for value in values)
                try:
                    return float(values[0]) ** values[1] if small else UNKNOWN
                except (ArithmeticError, TypeError):
                    return UNKNOWN
            case ast.Attribute():
                return Name(self.dotted(node)) if self.dotted(node).startswith("torch.") else UNKNOWN
            case _:
                return UNKNOWN

    @cached_property
    def options(self) -> dict[str, Any]:
        """Defaults of command-line options: `add_argument("--lr", default=1e-3)`, fields of a dataclass."""
        found: dict[str, Any] = {}
        for call in self.calls:
            if last_word(call.func) == "add_argument" and (default := keyword(call, "default")) is not None:
                names = [written(argument) for argument in call.args]
                for name in (each for each in names if isinstance(each, str) and each.startswith("-")):
                    found[name.lstrip("-").replace("-", "_")] = written(default)
        for node in self.nodes:
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        found.setdefault(field.target.id, written(field.value))
        return found


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


class Name(str):
    """The dotted name of something of torch, such as `torch.float16`, where a value was asked for."""


def written(node: ast.AST | None) -> Any:
    """A value that stands in the text itself: a number, a string, a list of them; else UNKNOWN."""
    if node is None:
        return UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The expression given to a keyword, if it is given by name."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def last_word(node: ast.AST) -> str:
    """`step` for `self.optimizer.step`; "" for what is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def default_of(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """The default of a parameter."""
    plain = [*function.args.posonlyargs, *function.args.args]
    pairs = dict(zip(reversed([each.arg for each in plain]), reversed(function.args.defaults), strict=False))
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {**{each.arg: value for each, value in named}, **pairs}.get(name)


def _arguments(scope: ast.AST) -> list[ast.arg]:
    arguments: ast.arguments = scope.args  # type: ignore[attr-defined]
    extra = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]
