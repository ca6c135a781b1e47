"""Binary cross-entropy of a sigmoid.

What it sees
    `binary_cross_entropy` or `BCELoss` over the result of a sigmoid.

Why it hurts
    The sigmoid rounds to exactly 0 or 1 for logits beyond about 17 in float32. torch cuts the logarithm at -100, so
    the loss is finite and the gradient of just those samples is wrong or zero. Under autocast it is refused outright.

Smallest example
    F.binary_cross_entropy(torch.sigmoid(logits), target)
    # fixed
    F.binary_cross_entropy_with_logits(logits, target)

What to do
    `F.binary_cross_entropy_with_logits(logits, target)`.

Safety
    A note: the loss stays finite, and only a confident and wrong sample is taught too little. Exact where the old form
    was accurate. A sigmoid in another function is not traced.

References
    https://github.com/pytorch/pytorch/issues/24933
    https://github.com/pytorch/pytorch/issues/751
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loss_expressions import bare
from ...inputs.script import Script, last_word

RULE = Rule("PF402", "bce_of_sigmoid", "Binary cross-entropy of a sigmoid.")
HELP = "leave the sigmoid out and use binary_cross_entropy_with_logits"


def of_script(script: Script) -> Iterator[Advice]:
    """Where the sigmoid is seen to go into the loss."""
    for call in script.calls:
        if not call.args or not _is_bce(script, call) or script.untracked(call):
            continue
        inner = script.op(bare(script, call.args[0]))
        if inner is not None and inner.name == "sigmoid" and inner.of_torch:
            yield at(RULE, Level.NOTE, script, call, "a saturated sigmoid gives a wrong or no gradient", help=HELP)


def _is_bce(script: Script, call: ast.Call) -> bool:
    if script.dotted(call.func) == "torch.nn.functional.binary_cross_entropy":
        return True
    made = script.value_of(call.func) if isinstance(call.func, ast.Name) else call.func
    return isinstance(made, ast.Call) and last_word(made.func) == "BCELoss"


SPECIMENS = [
    "import torch, torch.nn.functional as F\ndef loss(x, y):\n    return F.binary_cross_entropy(torch.sigmoid(x), y)\n",
    """
import torch
from torch import nn
criterion = nn.BCELoss()
p = torch.sigmoid(model(x))
loss = criterion(p, y)
""",
]
ONLY_NOTES = SPECIMENS
NEAR_MISSES = [
    "import torch, torch.nn.functional as F\ndef loss(x, y):\n    return F.binary_cross_entropy_with_logits(x, y)\n",
    "import torch\nfrom torch import nn\ncriterion = nn.MSELoss()\nloss = criterion(torch.sigmoid(model(x)), y)\n",
]
