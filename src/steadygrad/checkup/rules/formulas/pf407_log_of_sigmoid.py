"""The logarithm of a sigmoid, or of one minus it.

What it sees
    `log(sigmoid(x))` and `log(1 - sigmoid(x))`, in one expression or through a variable.

Why it hurts
    The sigmoid is exactly 0 or 1 for logits beyond about 17 (upward, float32) or 104 (downward): the logarithm is -inf
    and the gradient NaN. Losses of preference training and of GANs are often written so.

Smallest example
    torch.log(1 - torch.sigmoid(torch.tensor(20.0)))  # -inf
    # fixed
    F.logsigmoid(-torch.tensor(20.0))  # -20

What to do
    `F.logsigmoid(x)` for log(sigmoid(x)); `F.logsigmoid(-x)` for log(1 - sigmoid(x)).

Safety
    A note: how large the logits get is not shown by the file. Exact where the old form was finite, up to rounding.

References
    https://github.com/deepspeedai/DeepSpeedExamples/issues/423
    https://github.com/thinking-machines-lab/tinker-cookbook/pull/188
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import ends
from ...inputs.loss_expressions import bare
from ...inputs.script import Script

RULE = Rule("PF407", "log_of_sigmoid", "The logarithm of a sigmoid, or of one minus it.")


def of_script(script: Script) -> Iterator[Advice]:
    """A floor inside the logarithm is left alone."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name not in ("log", "log2") or not op.of_torch or script.untracked(call):
            continue
        inner = bare(script, op.operand)
        turned = (
            isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and script.literal(inner.left) in (1, 1.0)
        )
        if turned and isinstance(inner, ast.BinOp):
            inner = bare(script, inner.right)
        sigmoid = script.op(inner)
        if (
            sigmoid is not None
            and sigmoid.name == "sigmoid"
            and sigmoid.of_torch
            and ends(script, call) != {"looked at"}
        ):
            yield at(
                RULE, Level.NOTE, script, call, "log of a sigmoid is -inf where the sigmoid saturates",
                help="torch.nn.functional.logsigmoid(-x)" if turned else "torch.nn.functional.logsigmoid(x)",
            )  # fmt: skip


SPECIMENS = [
    "import torch\ndef loss(x):\n    return -torch.log(torch.sigmoid(x)).mean()\n",
    "import torch\ndef loss(x):\n    p = torch.sigmoid(x)\n    return -torch.log(1 - p).mean()\n",
]
ONLY_NOTES = [
    *SPECIMENS,
    "import torch\ndef match(x):\n    return torch.log(torch.sigmoid(x))\n",
]
NEAR_MISSES = [
    "import torch\ndef f(x):\n    p = torch.sigmoid(x)\n    best = torch.log(p).max()\n    return best.item()\n",
    "import torch.nn.functional as F\ndef loss(x):\n    return -F.logsigmoid(x).mean()\n",
    "import torch\ndef loss(x):\n    p = torch.sigmoid(x)\n    return -torch.log(1 - p + 1e-8).mean()\n",
]
