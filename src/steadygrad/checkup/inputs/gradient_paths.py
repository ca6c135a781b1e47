"""Where a value of a script goes: into a loss, out of the graph, or out of sight. Only then can a rule about gradients
tell what is differentiated from what is looked at."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .script import Script

UNTRACKED = {"no_grad", "inference_mode"}
LOOKING = (
    "eval", "valid", "test", "sample", "generate", "plot", "metric", "accuracy", "predict", "infer", "log_",
    "post_process", "postprocess", "check_", "visual",
)  # fmt: skip
LOOKING_WORDS = {"metric", "metrics", "accuracy", "search", "inference", "eval", "evaluation", "kmeans", "stats"}
MEASURING_WORDS = {"metric", "metrics", "evaluation", "evaluate", "eval", "inference", "benchmark"}
DATA_CLASSES = ("Processor", "FeatureExtractor", "Tokenizer", "Dataset", "Collator", "Transform", "Optimizer", "Metric")
LEAVES_THE_GRAPH = {"item", "detach", "numpy", "tolist", "detach_"}
OF_SHAPE = {"shape", "dtype", "device", "ndim"}
ASKS_SHAPE = {"size", "dim", "numel", "len"}
NUMBERS = re.compile(r"^(Optional\[)?(int|float|str|bool|torch\.device|torch\.dtype|device|dtype)\]?( \| None)?$")
LOSS = re.compile(r"loss|criterion|objective|penalty|regulari[sz]|elbo|(^|_)nll?l?(_|$)|(^|_)kld?(_|$)", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_untracked(node: ast.AST, above: Sequence[ast.AST]) -> bool:
    """Inside `no_grad`, in code for data, in a function that only looks or that is given numbers alone, in what an
    autograd function does by itself, or taken out of the graph at once: nothing there is differentiated."""
    return is_taken_out(node, above) or any(_untracks(each) for each in above)


def is_taken_out(node: ast.AST, above: Sequence[ast.AST]) -> bool:
    """`(...).item()`, `(...).detach()` and the like around an expression."""
    for each in above:
        if isinstance(each, ast.stmt):
            return False
        if isinstance(each, ast.Call) and _word(each.func) in LEAVES_THE_GRAPH:
            return True
    return False


def measures(path: str) -> bool:
    """Whether a file by its name measures a model: `bias_metrics.py`, `evaluation.py`, `benchmark.py`."""
    return bool(MEASURING_WORDS & set(PurePath(path).stem.lower().split("_")))


def only_looks(name: str) -> bool:
    """Whether a function by its name only evaluates, samples or plots."""
    plain = name.lower().strip("_")
    return plain.startswith(LOOKING) or bool(LOOKING_WORDS & set(plain.split("_")))


def _untracks(node: ast.AST) -> bool:
    match node:
        case ast.ClassDef():
            bases = [_word(base) for base in node.bases]
            return "Function" in bases or any(kind.endswith(DATA_CLASSES) for kind in (node.name, *bases))
        case ast.With() | ast.AsyncWith():
            return any(_is_untracking(item.context_expr) for item in node.items)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            decorated = any(_is_untracking(decorator) for decorator in node.decorator_list)
            return decorated or only_looks(node.name) or _takes_numbers(node)
        case _:
            return False


def _is_untracking(node: ast.expr) -> bool:
    return _word(node.func if isinstance(node, ast.Call) else node) in UNTRACKED


def _takes_numbers(function: _Function) -> bool:
    """Every parameter is annotated as a number or a word: such a function makes constants."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    notes = [each.annotation for each in given]
    return bool(notes) and all(note is not None and NUMBERS.match(ast.unparse(note)) for note in notes)


def ends(script: Script, node: ast.AST) -> set[str]:
    """How the ways of a value end: in a `loss`, `returned`, `looked at` (compared, printed, taken out), or `elsewhere`.
    Names are followed within the function, and one call further where the function is called in this file."""
    found: set[str] = set()
    stack: list[tuple[ast.AST, int]] = [(node, 1)]
    seen: set[tuple[ast.AST, str]] = set()
    while stack:
        each, calls_left = stack.pop()
        end, names = _way(script, each)
        scope = script.scope(each)
        if end == "returned" and isinstance(scope, ast.FunctionDef):
            owner = script.class_of(scope)
            titles = [scope.name, *([owner.name, *(_word(base) for base in owner.bases)] if owner is not None else [])]
            end = "loss" if any(LOSS.search(title) for title in titles) else end
            if calls_left and end == "returned":
                stack += [(call, 0) for call in script.calls if _word(call.func) == scope.name]
        if end:
            found.add(end)
        for name in names:
            if (scope, name) not in seen:
                seen.add((scope, name))
                stack += [(load, calls_left) for load in script.reads.get((scope, name), [])]
    return found


def _way(script: Script, node: ast.AST) -> tuple[str, list[str]]:
    """How the statement around a value uses it, or the names that hold it from there on."""
    inner = node
    for each in script.above(node):
        match each:
            case ast.Compare() | ast.JoinedStr() | ast.Assert():
                return "looked at", []
            case ast.Call() if inner is not each.func and LOSS.search(_word(each.func)):
                return "loss", []
            case ast.Call() if _word(each.func) in LEAVES_THE_GRAPH | ASKS_SHAPE or _word(each.func) == "print":
                return "looked at", []
            case ast.Attribute() if each.attr in OF_SHAPE:
                return "looked at", []
            case ast.Call() if _word(each.func) == "backward":
                return "loss", []
            case ast.Call(func=ast.Attribute(attr="append" | "extend", value=ast.Name(id=name))):
                return _into([name])
            case ast.Subscript() if inner is each.slice:
                return "looked at", []
            case ast.If() | ast.While():
                return ("looked at" if inner is each.test else ""), []
            case ast.Return() | ast.Yield() | ast.Lambda():
                return "returned", []
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                return _into(_targets(each))
            case ast.stmt():
                return "elsewhere", []
        inner = each
    return "elsewhere", []


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[str]:
    """The names that an assignment gives a value to; of `out["rmse"]` the key, of `self.x` the attribute."""
    found = []
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(part, ast.Name):
                found.append(part.id)
            elif isinstance(part, ast.Attribute):
                found.append(f".{part.attr}")
            elif isinstance(part, ast.Subscript):
                key = str(part.slice.value) if isinstance(part.slice, ast.Constant) else ""
                found += [f".{key}", _word(part.value)]
    return found


def _into(names: list[str]) -> tuple[str, list[str]]:
    if any(LOSS.search(name) for name in names):
        return "loss", []
    kept = [name for name in names if name and not name.startswith(".")]
    return ("" if kept else "elsewhere"), kept


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
