"""Expressions of a loss, seen through what does not change their value's range: names, views, indexing, casts."""

from __future__ import annotations

import ast

from .script import Script, last_word

SHAPE_ONLY = {
    "view", "reshape", "squeeze", "unsqueeze", "float", "double", "half", "bfloat16", "to", "contiguous", "flatten",
    "clone", "gather", "index_select", "transpose", "permute", "t", "cuda", "cpu", "type_as", "expand", "expand_as",
    "repeat", "take_along_dim",
}  # fmt: skip
GUARDS = {
    "clamp",
    "clamp_",
    "clamp_min",
    "clamp_min_",
    "clip",
    "maximum",
    "max",
    "where",
    "nan_to_num",
    "masked_fill",
    "relu",
}
POSITIVE = {
    "exp", "softmax", "sigmoid", "softplus", "ones", "ones_like", "arange", "linspace", "rand", "full", "tensor",
    "cosh", "size", "hann_window", "hamming_window", "Softmax",
}  # fmt: skip

MINUS_INFINITY = {"float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf", "-inf"}


def bare(script: Script, node: ast.expr | None, most: int = 8) -> ast.expr | None:
    """The expression that decides the value: behind names, views, indexing, casts and functions of the same file."""
    for _ in range(most):
        node = script.follow(node)
        if isinstance(node, ast.Subscript):
            node = node.value
            continue
        op = script.op(node)
        if op is not None and op.name in SHAPE_ONLY and op.operand is not None:
            node = op.operand
            continue
        given = script.returned_by(node)
        if given is None:
            return node
        node = given
    return node


def is_guarded(script: Script, node: ast.expr | None) -> bool:
    """Whether an expression keeps itself away from zero: plus something, clamped, a maximum, a choice."""
    node = bare(script, node)
    if isinstance(node, ast.IfExp | ast.BoolOp):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return is_guarded(script, node.left) and is_guarded(script, node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = script.op(bare(script, node.operand))
        return inner is not None and inner.name == "expm1"  # 1 - e^x, written to be safe
    if isinstance(node, ast.Constant):
        return bool(node.value)
    op = script.op(node)
    return op is not None and op.name in GUARDS | POSITIVE


def is_positive(script: Script, node: ast.expr | None) -> bool:
    """Whether an expression is above zero by its nature: an exponential, a softmax, a count from one."""
    node = bare(script, node)
    op = script.op(node)
    if op is not None and op.name in ("sum", "mean", "cumsum", "pow", "detach"):
        return is_positive(script, op.operand)
    return (op is not None and op.name in POSITIVE) or (isinstance(node, ast.Constant) and bool(node.value))


def asked_before(script: Script, node: ast.AST, expression: ast.expr) -> bool:
    """Whether an `if`, a conditional expression or a `where` around `node` looks at part of `expression` first, or the
    function writes to the part that is too small (`s[s < 0.001] = 0.001`)."""
    origin = script.follow(expression)
    words = names_in(expression) | (names_in(origin) if origin is not None else set())
    words -= {"sum", "std", "norm", "mean", "torch"}
    for each in ast.walk(script.scope(node)):
        place = each.targets[0] if isinstance(each, ast.Assign) else None
        if isinstance(place, ast.Subscript) and names_in(place.value) & words & names_in(place.slice):
            return True
    for each in script.above(node):
        test: ast.AST | None = None
        if isinstance(each, ast.If | ast.IfExp | ast.While | ast.Assert):
            test = each.test
        elif isinstance(each, ast.Call) and last_word(each.func) == "where" and each.args:
            test = each.args[0]
        if test is not None and _names_asked(test) & words:
            return True
    return False


def _names_asked(test: ast.AST) -> set[str]:
    """The names whose value a condition looks at: `mask is not None` says nothing about what is in the mask."""
    if isinstance(test, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops):
        return set()
    if isinstance(test, ast.BoolOp):
        return {name for part in test.values for name in _names_asked(part)}
    return names_in(test)


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute in an expression."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def asks_if_finite(test: ast.expr) -> bool:
    """A condition that asks whether something is NaN or infinite."""
    return any(
        isinstance(each, ast.Call)
        and last_word(each.func) in ("isnan", "isinf", "isfinite", "is_nan", "has_inf_or_nan")
        for each in ast.walk(test)
    ) or any(_is_self_unequal(each) for each in ast.walk(test))


def _is_self_unequal(node: ast.AST) -> bool:
    # `loss != loss` is true for NaN alone
    return (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.NotEq)
        and ast.dump(node.left) == ast.dump(node.comparators[0])
    )
