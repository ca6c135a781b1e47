"""The user's line as it would read with the remedy in it, where the line is simple enough to rewrite."""

from __future__ import annotations

import ast
import math


def with_floor(line: str | None, call: str, *, divisor: str = "", least: float = 1e-6) -> str | None:
    """`num / den` -> `num / den.clamp_min(1e-06)`; `torch.log(p)` -> `torch.log(p.clamp_min(1e-06))`.

    `divisor` is the dtype of what is divided by: a count is at least 1. `least` is the floor that was tried.
    """
    if call in ("div", "truediv", "true_divide", "divide", "rtruediv", "reciprocal"):
        return _rewritten(line, _Denominator(f"{min(least, 0.1):g}" if "float" in divisor or not divisor else "1"))
    return _rewritten(line, _Argument(call, f".clamp_min({least:g})"))


def with_bounds(line: str | None, call: str, low: float, high: float) -> str | None:
    """`torch.exp(x)` -> `torch.exp(x.clamp(-80, 20))`."""
    bounds = f".clamp_min({low:g})" if math.isinf(high) else f".clamp({low:g}, {high:g})"
    if abs(high) == 1.0:
        bounds = ".clamp(-1 + 1e-6, 1 - 1e-6)"
    return _rewritten(line, _Argument(call, bounds))


def with_cast_bounds(line: str | None, top: float) -> str | None:
    """`(x * scale).to(kind)` -> `(x * scale).clamp(-448, 448).to(kind)`."""
    return _rewritten(line, _Cast(f".clamp({-top:g}, {top:g})"))


def _rewritten(line: str | None, change: ast.NodeTransformer) -> str | None:
    if not line:
        return None
    code = line.split("  #")[0].strip()
    wrapped = f"def f():\n    {code}" if code.startswith(("return", "yield")) else code
    try:
        tree = ast.parse(wrapped)
    except SyntaxError:
        return None
    after = ast.unparse(ast.fix_missing_locations(change.visit(tree)))
    if after == ast.unparse(ast.parse(wrapped)):
        return None
    return after.removeprefix("def f():\n").strip()


def _suffixed(node: ast.expr, suffix: str) -> ast.expr:
    simple = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    text = ast.unparse(node) if simple else f"({ast.unparse(node)})"
    return ast.parse(text + suffix, mode="eval").body


class _Argument(ast.NodeTransformer):
    def __init__(self, call: str, suffix: str) -> None:
        self.call, self.suffix = call, suffix

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == self.call:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("torch", "F") and node.args:
                node.args[0] = _suffixed(node.args[0], self.suffix)
            elif not node.args:
                node.func.value = _suffixed(owner, self.suffix)
        return node


class _Cast(ast.NodeTransformer):
    """What is cast to an 8-bit float with `.to(...)`."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and _names_eight_bits(node):
            node.func.value = _suffixed(node.func.value, self.suffix)
        return node


def _names_eight_bits(node: ast.Call) -> bool:
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return any(isinstance(each, ast.Attribute) and each.attr.startswith("float8") for each in given)


class _Denominator(ast.NodeTransformer):
    def __init__(self, floor: str) -> None:
        self.floor = floor

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div) and not isinstance(node.right, ast.Constant):
            node.right = _suffixed(node.right, f".clamp_min({self.floor})")
        return node
