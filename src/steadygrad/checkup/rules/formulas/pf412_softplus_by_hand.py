"""The logarithm of one plus an exponential.

What it sees
    `log1p(exp(x))` and `log(1 + exp(x))`, in one expression or through a variable.

Why it hurts
    The exponential is infinite for x above 88 in float32 and above 11 in float16, so that the value is infinite where
    the true one is x, and the gradient is NaN.

Smallest example
    torch.log1p(torch.exp(torch.tensor(100.0)))  # inf
    # fixed
    F.softplus(torch.tensor(100.0))  # 100

What to do
    `torch.nn.functional.softplus(x)`, or `-F.logsigmoid(-x)`.

Safety
    A note: how large the argument gets is not shown by the file. Exact where the old form was finite, up to rounding.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Softplus.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loss_expressions import bare, names_in
from ...inputs.script import Script, last_word

RULE = Rule("PF412", "softplus_by_hand", "The logarithm of one plus an exponential.")
DISTANCES = {"norm", "cdist", "vector_norm", "abs", "pairwise_distance", "square"}
KEEPS_SIGN = {"topk", "sort", "min", "max", "amin", "amax", "masked_select", "sqrt", "sum", "mean"}
BOUNDED = {"clamp", "clamp_max", "clip", "minimum", "abs", "logsigmoid", "log_softmax", "log_sigmoid"}


def of_script(script: Script) -> Iterator[Advice]:
    """An exponent that cannot be large (a negative magnitude, a clamp, a log-probability) is left alone."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name not in ("log", "log1p") or not op.of_torch or script.untracked(call):
            continue
        inner = bare(script, op.operand)
        if op.name == "log":
            inner = _beside_one(script, inner)
        power = script.op(bare(script, inner))
        if _is_replaced(script, call):
            continue
        if power is not None and power.name == "exp" and power.of_torch and not _is_bounded(script, power.operand):
            yield at(
                RULE, Level.NOTE, script, call, "the exponential overflows where its argument is large",
                help="torch.nn.functional.softplus(x)",
            )  # fmt: skip


def _is_replaced(script: Script, call: ast.Call) -> bool:
    """`y = torch.where(y == inf, x, y)` further down: what overflowed is replaced."""
    names = [name for each in script.above(call) if isinstance(each, ast.Assign) for name in names_in(each.targets[0])]
    choices = [each for each in script.calls if last_word(each.func) in ("where", "masked_fill") and each.args]
    chosen = [names_in(part) for each in choices for part in each.args[:1] if script.scope(each) is script.scope(call)]
    return any(name in words for name in names for words in chosen)


def _beside_one(script: Script, node: ast.expr | None) -> ast.expr | None:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return None
    pair = [(node.left, node.right), (node.right, node.left)]
    return next((other for one, other in pair if script.literal(one) in (1, 1.0)), None)


def _is_bounded(script: Script, node: ast.expr | None) -> bool:
    """Also a difference of what is sorted or maximal: logaddexp written by hand subtracts the larger one first."""
    node = bare(script, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = bare(script, node.operand)
    op = script.op(node)
    if op is not None and op.name in BOUNDED:
        return True
    words = ast.unparse(node).lower() if node is not None else ""
    return _is_below_margin(script, node) or any(
        part in words for part in ("max", "min", "abs", "clamp", "logp", "log_p")
    )


def _is_below_margin(script: Script, node: ast.expr | None) -> bool:
    """A number less a distance, `margin - d` or `-d + margin`: it is never above that number."""
    if not isinstance(node, ast.BinOp):
        return False
    number, distance = node.left, node.right
    if isinstance(node.op, ast.Add):
        negative = [each for each in (node.left, node.right) if isinstance(each, ast.UnaryOp)]
        if len(negative) != 1 or not isinstance(negative[0].op, ast.USub):
            return False
        number, distance = (node.right if negative[0] is node.left else node.left), negative[0].operand
    elif not isinstance(node.op, ast.Sub):
        return False
    is_number = isinstance(script.literal(number), int | float) or "margin" in ast.unparse(number)
    return is_number and _is_distance(script, distance)


def _is_distance(script: Script, node: ast.expr | None) -> bool:
    """A norm or a sum of squares, also the smallest or largest of them."""
    for _ in range(8):
        op = script.op(bare(script, node))
        if op is None:
            return False
        if op.name in DISTANCES or (op.name == "pow" and [script.literal(each) for each in op.call.args][-1:] == [2]):
            return True
        if op.name not in KEEPS_SIGN:
            return False
        node = op.operand
    return False


SPECIMENS = [
    """
import torch
def triplet_loss(a, b, c, margin):
    return torch.log1p(torch.exp((a - b).pow(2).sum(1) - (a - c).pow(2).sum(1) + margin)).mean()
""",
    "import torch\ndef loss(x):\n    return torch.log1p(torch.exp(x)).mean()\n",
    "import torch\ndef loss(x):\n    e = x.exp()\n    return torch.log(1 + e).mean()\n",
]
ONLY_NOTES = [
    *SPECIMENS,
    "import torch\ndef match(x):\n    return torch.log1p(torch.exp(x))\n",
]
NEAR_MISSES = [
    """
import torch
def negative_only_loss(embeddings, mask, k, margin):
    pairwise = (embeddings.unsqueeze(0) - embeddings.unsqueeze(1)).pow(2).sum(2)
    hardest = torch.topk(pairwise, k=k, dim=1, largest=False)[0]
    dneg = hardest[mask]
    return torch.log1p(torch.exp(-dneg + float(margin))).mean()
""",
    """
import torch
def swoosh(x):
    y = (1.0 + x.exp()).log()
    y = torch.where(y == float("inf"), x, y)
    return y - 0.08 * x
""",
    "import torch\ndef loss(x):\n    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))\n",
    "import torch\nimport torch.nn.functional as F\ndef loss(x):\n    return F.softplus(x).mean()\n",
    "import torch\ndef f(a, b):\n    m = torch.maximum(a, b)\n    return m + torch.log1p(torch.exp(-(a - b).abs()))\n",
]
