"""A division by a standard deviation that may be zero.

What it sees
    `(x - x.mean()) / x.std()` with nothing added to the deviation and no floor under it.

Why it hurts
    In a group of equal values, as rewards that are all right or all wrong, the deviation is zero and the result NaN.
    For a group of one, torch's deviation is itself NaN.

Smallest example
    advantages = (rewards - rewards.mean()) / rewards.std()

What to do
    `/ (rewards.std() + 1e-4)`; for groups of one, `std(unbiased=False)` as well.

Safety
    The epsilon shifts advantages by its share of the deviation.

References
    https://github.com/huseinzol05/Stock-Prediction-Models/issues/43
    https://github.com/Tencent-Hunyuan/UniRL/issues/330
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...records.checkup import Advice, Level
from ...rules import Rule
from ..advice import at
from ..arithmetic import asked_before, bare
from ..script import Script

RULE = Rule("PF405", "unguarded_std", "A division by a standard deviation that may be zero.")


def of_script(script: Script) -> Iterator[Advice]:
    """Also under no_grad: advantages are normalised there, and go into the loss."""
    if not script.imports("torch"):
        return
    for node in script.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left, right = node.left, node.right
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            left, right = node.target, node.value
        else:
            continue
        op = script.op(bare(script, right))
        if op is None or op.name != "std" or not (op.of_torch or op.module == "numpy"):
            continue
        if not _is_standardised(script, left):
            continue
        if script.untracked_for_looking(node) or asked_before(script, node, right):
            continue
        yield at(
            RULE, Level.WARNING, script, node, f"divides by {ast.unparse(right)}, which is zero for equal values",
            help="add an epsilon to the deviation",
        )  # fmt: skip


def _is_standardised(script: Script, node: ast.expr) -> bool:
    """Something with its mean taken off, or rewards and their kin by name: not random numbers being scaled."""
    centred = bare(script, node)
    if isinstance(centred, ast.BinOp) and isinstance(centred.op, ast.Sub):
        return True
    return any(word in ast.unparse(node).lower() for word in ("adv", "reward", "return", "score"))


SPECIMENS = [
    "import torch\ndef advantages(r):\n    return (r - r.mean()) / r.std()\n",
    "import torch\ndef advantages(r):\n    s = r.std(dim=1, keepdim=True)\n    return (r - r.mean(1, True)) / s\n",
]
NEAR_MISSES = [
    "import torch\ndef start(n):\n    a = torch.randn(n, n)\n    return a / a.std()\n",
    "import torch\ndef advantages(r):\n    return (r - r.mean()) / (r.std() + 1e-4)\n",
    "import torch\ndef normalise(x, mean, std):\n    return (x - mean) / std\n",
    "import torch\ndef advantages(r):\n    if r.std() > 0:\n        r = (r - r.mean()) / r.std()\n    return r\n",
]
