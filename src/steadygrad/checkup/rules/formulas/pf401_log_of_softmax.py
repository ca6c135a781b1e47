"""The logarithm of a softmax.

What it sees
    `log` of a `softmax`, written in one expression or through a variable.

Why it hurts
    A probability that underflows to zero has the logarithm -inf, and the gradient there is NaN. In float16 that takes
    a logit only 17 below the largest; in float32, 104.

Smallest example
    torch.log(torch.softmax(torch.tensor([0.0, 200.0]), -1))  # [-inf, 0]
    # fixed
    torch.log_softmax(torch.tensor([0.0, 200.0]), -1)  # [-200, 0]

What to do
    `torch.log_softmax(x, dim=-1)`, which subtracts before it exponentiates.

Safety
    A note: how far apart the logits get is not shown by the file. Exact where the old form was finite, up to rounding.

References
    https://github.com/summerlvsong/Aggregation-Cross-Entropy/issues/2
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import ends
from ...inputs.loss_expressions import bare
from ...inputs.script import Script

RULE = Rule("PF401", "log_of_softmax", "The logarithm of a softmax.")


def of_script(script: Script) -> Iterator[Advice]:
    """A floor inside the logarithm (plus epsilon, clamp) is left alone."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name not in ("log", "log2", "log10") or not op.of_torch or script.untracked(call):
            continue
        inner = script.op(bare(script, op.operand))
        if inner is not None and inner.name == "softmax" and inner.of_torch and ends(script, call) != {"looked at"}:
            yield at(
                RULE, Level.NOTE, script, call, "log of softmax is -inf where the softmax underflows",
                help="torch.log_softmax(x, dim)",
            )  # fmt: skip


SPECIMENS = [
    "import torch\ndef loss_fn(x):\n    return torch.log(torch.softmax(x, dim=-1)).mean()\n",
    """
import torch.nn.functional as F
def loss_fn(x, y):
    p = F.softmax(x, dim=-1)
    return -p.gather(1, y).log().mean()
""",
]
ONLY_NOTES = [
    *SPECIMENS,
    """
import torch
import torch.nn.functional as F
def distill_loss(student, teacher, temperature=20):
    log_p = torch.log(F.softmax(student / temperature, dim=1))
    return F.kl_div(log_p, F.softmax(teacher / temperature, dim=1), reduction="sum")
""",
    "import torch\ndef match(x):\n    return torch.log(torch.softmax(x, dim=-1))\n",
]
NEAR_MISSES = [
    "import torch\ndef f(x):\n    p = torch.softmax(x, dim=-1)\n    a = torch.log(p).max()\n    return a.item()\n",
    "import torch\ndef beam_search(x):\n    p = x.softmax(dim=-1)\n    return p.log().topk(4)\n",
    "import torch\ndef loss_fn(x):\n    return torch.log_softmax(x, dim=-1).mean()\n",
    "import torch\ndef loss_fn(x):\n    p = torch.softmax(x, dim=-1)\n    return torch.log(p + 1e-8).mean()\n",
    "import torch\n@torch.no_grad()\ndef entropy(x):\n    return torch.log(torch.softmax(x, dim=-1)).mean()\n",
]
