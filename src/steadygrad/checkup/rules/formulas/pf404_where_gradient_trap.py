"""`where` discards a bad value and keeps its gradient.

What it sees
    `torch.where(condition, f(x), other)` where f is a logarithm, a root, an inverse or a division that is not finite
    for the x that the condition leaves out.

Why it hurts
    `where` gives the discarded branch a gradient of zero, and zero times the infinite derivative of f is NaN. The
    forward is finite, so the loss shows nothing.

Smallest example
    torch.where(x > 0, torch.log(x), 0.0)
    # fixed
    torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), 0.0)

What to do
    Make the argument safe first: `torch.log(torch.where(x > 0, x, 1.0))` inside the outer `where`.

Safety
    Exact: selected values and their gradients are unchanged. A note: that the value is zero in some batch, and that a
    gradient is asked for behind it, is not shown by the file.

References
    https://github.com/pytorch/pytorch/issues/187297
    https://github.com/pytorch/pytorch/issues/68425
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import ends
from ...inputs.loss_expressions import asks_if_finite, bare, is_guarded, is_positive, names_in
from ...inputs.script import Script

RULE = Rule("PF404", "where_gradient_trap", "`where` discards a bad value and keeps its gradient.")
TRAPS = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "acos", "asin", "arccos", "arcsin", "acosh", "atanh"}


def of_script(script: Script) -> Iterator[Advice]:
    """Both branches, through variables; nothing for what is only looked at."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name != "where" or not op.of_torch or op.module == "tensor" or len(call.args) != 3:
            continue
        if script.untracked(call):
            continue
        asked = names_in(call.args[0]) | names_in(script.follow(call.args[0]) or call.args[0])
        for branch in call.args[1:]:
            if _is_bound(script, call.args[0], branch):
                continue
            what = _trap(script, branch, asked, finite=asks_if_finite(call.args[0]))
            if what and ends(script, call) != {"looked at"}:
                yield at(
                    RULE, Level.NOTE, script, call, f"{what} is discarded here, and its gradient is not",
                    help="replace the argument where it is bad before applying the function (a second where inside)",
                )  # fmt: skip
                break


def _is_bound(script: Script, condition: ast.expr, branch: ast.expr) -> bool:
    """`where(error < beta, error**2 / beta, ...)`: the divisor is what something else is compared with, not zero."""
    node, asked = script.follow(branch), script.follow(condition)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(asked, ast.Compare)):
        return False
    sides = [asked.left, *asked.comparators]
    bounds = [side for side in sides if ast.dump(side) == ast.dump(node.right)]
    numbers = [side for side in sides if isinstance(script.literal(side), int | float)]
    return bool(bounds) and not numbers


def _trap(script: Script, branch: ast.expr, asked: set[str], *, finite: bool) -> str:
    """What in a branch is not finite where the condition, which must be about it, leaves it out."""
    node = script.follow(branch)
    if finite and isinstance(branch, ast.Name) and branch.id in asked:
        asked = asked | names_in(node or branch)
    op = script.op(node)
    if op is not None and op.name in TRAPS and op.of_torch and op.operand is not None:
        safe = is_guarded(script, op.operand) or is_positive(script, op.operand)
        safe = safe or not (names_in(op.operand) - {"torch"}) & asked
        return "" if safe else f"{op.name} of {ast.unparse(op.operand)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        right = bare(script, node.right)
        plain = isinstance(right, ast.Name | ast.Attribute) or script.op(right) is not None
        data = isinstance(right, ast.Constant) or not plain or not names_in(node.right) & asked
        if not data and not is_guarded(script, node.right) and not is_positive(script, node.right):
            return f"the quotient by {ast.unparse(node.right)}"
    return ""


SPECIMENS = [
    "import torch\ndef loss(x, n):\n    q = x / n\n    return torch.where(torch.isfinite(q), q, 0.0).sum()\n",
    "import torch\ndef loss(x):\n    return torch.where(x > 0, torch.log(x), 0.0).sum()\n",
    "import torch\ndef loss(x, n):\n    q = x / n\n    return torch.where(n > 0, q, torch.zeros_like(x)).sum()\n",
]
ONLY_NOTES = [
    *SPECIMENS,
    "import torch\ndef laplacian(n):\n    d = degrees(n)\n    return torch.where(d > 0, torch.reciprocal(d), d)\n",
]
NEAR_MISSES = [
    "import torch\ndef f(t, n):\n    val = torch.where(n > 0, t / n, t)\n    return val.detach()\n",
    """
import torch
def sinc_kernel(width: int, device: torch.device):
    t = torch.arange(-width, width, device=device)
    t *= 3.14
    return torch.where(t == 0, torch.tensor(1.0), t.sin() / t)
""",
    "import torch\ndef loss(e, beta):\n    return torch.where(e < beta, 0.5 * e**2 / beta, e - 0.5 * beta).sum()\n",
    "import torch\ndef scale(h, w, n):\n    a, b = 8 / h, 8 / w\n    return torch.where(a > b, b, a)\n",
    "import torch\ndef scale(h, w):\n    a = 8 / h\n    b = 8 / w\n    return torch.where(a > b, b, a)\n",
    "import torch\ndef scores(x, penalty):\n    return torch.where(x < 0, x * penalty, x / penalty)\n",
    """
import torch
def log1mexp(x):
    return torch.where(x < -1, torch.log1p(-torch.exp(x)), torch.log(-torch.expm1(x)))
""",
    """
import torch
def loss(x):
    safe = torch.where(x > 0, x, torch.ones_like(x))
    return torch.where(x > 0, torch.log(safe), 0.0).sum()
""",
    "import torch\ndef loss(x):\n    return torch.where(x > 0, torch.log(x.clamp(min=1e-8)), 0.0).sum()\n",
    "import torch\ndef loss(x):\n    return torch.where(x > 0, x * 2, 0.0).sum()\n",
]
