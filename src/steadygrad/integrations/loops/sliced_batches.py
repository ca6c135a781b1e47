"""The batches that a loop cuts out of larger tensors inside its own lines: `model(x[i:i + 16])`.

The lines read the whole of `x`, so no row can be left out of the batch by its name. Here such an expression is computed
once and gets its own name, so that the lines read the batch, and rows can be chosen as of any other.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...detect.tensors.foreign_objects import isinstance
from .loop_slice import LoopSlice, names_read

_INDEX = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Slice, ast.Tuple, ast.operator, ast.unaryop, ast.Load)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.FunctionDef, ast.ClassDef)


def with_named_batches(lines: LoopSlice, taken: Mapping[str, Any]) -> tuple[LoopSlice, dict[str, Any]] | None:
    """The same lines over batches with their own names, and all values they read; None where there is none.

    Evaluates indexing of tensors by numbers, slices and other tensors, and nothing else.
    """
    tree = copy.deepcopy(lines.tree)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    naming = _BatchNaming(taken, stored)
    tree = ast.fix_missing_locations(naming.visit(tree))
    if not naming.batches:
        return None
    reads = names_read(tree.body)
    values = {name: value for name, value in {**taken, **naming.batches}.items() if name in reads}
    code = compile(tree, lines.filename, "exec")
    return replace(lines, code=code, tree=tree, reads=tuple(sorted(reads)), batch_names=()), values


class _BatchNaming(ast.NodeTransformer):
    """Replaces parts of tensors by names. What a separate line computes first is left as it is."""

    def __init__(self, taken: Mapping[str, Any], stored: set[str]) -> None:
        self._taken, self._stored = taken, stored
        self.batches: dict[str, Tensor] = {}
        """By their own text, `x[i:i + 16]`, which Python takes for a name where it is not parsed again."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _SCOPES) else super().visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        text = ast.unparse(node)
        if isinstance(node.ctx, ast.Load) and text not in self.batches and self._is_plain(node):
            value = self._value(node)
            if value is not None:
                self.batches[text] = value
        if text in self.batches and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Name(text, ast.Load()), node)
        return self.generic_visit(node)

    def _is_plain(self, node: ast.Subscript) -> bool:
        """Whether a tensor that the lines only read is indexed by what they only read."""
        parts = [node.value, *ast.walk(node.slice)]
        names = [part.id for part in parts if isinstance(part, ast.Name)]
        known = all(name in self._taken and name not in self._stored for name in names)
        return isinstance(node.value, ast.Name) and known and all(isinstance(part, _INDEX) for part in parts)

    def _value(self, node: ast.Subscript) -> Tensor | None:
        assert isinstance(node.value, ast.Name)
        table = self._taken[node.value.id]
        names = {part.id for part in ast.walk(node.slice) if isinstance(part, ast.Name)}
        plain = all(isinstance(self._taken[name], int | Tensor | slice) for name in names)
        if type(table) is not Tensor or table.dim() == 0 or table.requires_grad or not plain:
            return None
        expression = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(node))), "<batch>", "eval")
        try:
            value = eval(expression, {"__builtins__": {}}, dict(self._taken))
        except Exception:  # an index out of its range: the lines will raise by themselves
            return None
        return value if isinstance(value, Tensor) and value.dim() else None
