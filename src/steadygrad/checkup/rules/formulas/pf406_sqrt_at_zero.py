"""The root of something that can be exactly zero.

What it sees
    `sqrt` of a sum or mean of squares, or of a mean squared error, with nothing added to it.

Why it hurts
    The derivative of the root is infinite at zero. A perfect prediction, or two equal embeddings, turns the gradient
    into NaN though the loss is 0.

Smallest example
    torch.sqrt(((a - b) ** 2).sum(-1))
    # fixed
    torch.linalg.vector_norm(a - b, dim=-1)

What to do
    `torch.sqrt(x + 1e-8)`, or `torch.linalg.vector_norm(a - b, dim=-1)`, whose gradient at zero is zero.

Safety
    The epsilon moves a distance of d by about 1e-8 / 2d. A note, for a perfect prediction is rare, and
    whether two rows are ever equal is not shown by the file.

References
    https://github.com/pytorch/pytorch/issues/6394
    https://github.com/open-mmlab/mmrotate/issues/205
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import ends
from ...inputs.loss_expressions import bare, names_in
from ...inputs.script import Script, last_word

RULE = Rule("PF406", "sqrt_at_zero", "The root of something that can be exactly zero.")


def of_script(script: Script) -> Iterator[Advice]:
    """Only roots whose argument is plainly a square that may vanish, and nothing that is only compared or printed."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name != "sqrt" or not op.of_torch or op.operand is None or script.untracked(call):
            continue
        if any(word == "grad" or word.startswith("grad_") for word in names_in(op.operand)):
            continue  # an optimizer's arithmetic on gradients is not differentiated
        if _is_square(script, bare(script, op.operand)) and not _is_feature(script, call):
            if ends(script, call) == {"looked at"}:
                continue
            yield at(
                RULE, Level.NOTE, script, call, "the gradient of this root is infinite where its argument is zero",
                help="add a small number inside the root, or use torch.linalg.vector_norm",
            )  # fmt: skip


def _is_feature(script: Script, call: ast.Call) -> bool:
    """A root in a method that goes into a layer of the same object (`self.layer(...)`) and is made of the method's
    arguments alone: an input is described, and no gradient is asked for behind it."""
    method = script.scope(call)
    if not isinstance(method, ast.FunctionDef) or not method.args.args or method.args.args[0].arg != "self":
        return False
    assigned = [node for node in ast.walk(method) if isinstance(node, ast.Assign)]
    made: set[str] = set()
    before = {each.arg for each in method.args.args[1:]}
    for node in assigned:
        words = names_in(node.value)
        targets = {word for target in node.targets for word in names_in(target)}
        if words & made or any(each is call for each in ast.walk(node.value)):
            made |= targets
        elif "self" in words:
            before -= targets
        elif words & before:
            before |= targets
    layers = [each for each in ast.walk(method) if isinstance(each, ast.Call) and _is_layer(each)]
    return (
        bool(names_in(call) & before)
        and "self" not in names_in(call)
        and any(names_in(argument) & made for layer in layers for argument in layer.args)
    )


def _is_layer(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == "self"
    )


def _is_square(script: Script, node: ast.expr | None) -> bool:
    op = script.op(node)
    if op is not None and op.name in ("sum", "mean") and op.of_torch:
        return _is_power(script, bare(script, op.operand))
    if op is not None and op.name == "mse_loss":
        return True
    if isinstance(node, ast.Call):
        made = script.value_of(node.func) if isinstance(node.func, ast.Name) else node.func
        return isinstance(made, ast.Call) and last_word(made.func) == "MSELoss"
    return False


def _is_power(script: Script, node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return bool(script.literal(node.right) == 2)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.dump(node.left) == ast.dump(node.right)
    op = script.op(node)
    if op is not None and op.name == "pow":
        return any(script.literal(argument) == 2 for argument in op.call.args)
    return op is not None and op.name == "square"


SPECIMENS = [
    """
import torch
class Points(torch.nn.Module):
    def forward(self, x, y):
        difference = self.first(x) - y
        distance = torch.sqrt((difference * difference).sum(1))
        return self.layer(distance)
""",
    """
import torch
class Loss(torch.nn.Module):
    def forward(self, a, b):
        return torch.sqrt(((a - b) ** 2).mean())
""",
    "import torch\ndef distance(a, b):\n    return torch.sqrt(((a - b) ** 2).sum(-1))\n",
    "import torch\nimport torch.nn.functional as F\ndef rmse(a, b):\n    return torch.sqrt(F.mse_loss(a, b))\n",
    "import torch\ndef distance(a, b):\n    d = (a - b).pow(2).sum(1)\n    return d.sqrt()\n",
]
ONLY_NOTES = [
    *SPECIMENS,
    "import torch\ndef unit(x):\n    return x / torch.sqrt(torch.sum(x**2, dim=1, keepdim=True))\n",
]
NEAR_MISSES = [
    """
import torch
def sequence_loss(flows, target, valid):
    magnitude = torch.sum(target**2, dim=1).sqrt()
    error = torch.sum((flows[-1] - target) ** 2, dim=1).sqrt()
    valid = valid & (magnitude < 400)
    return (valid * (flows[-1] - target).abs()).mean(), {"epe": error.mean().item(), "1px": (error < 1).sum().item()}
""",
    """
import torch
class Scaled(torch.autograd.Function):
    @staticmethod
    def backward(ctx, x_grad):
        return x_grad / (x_grad**2).mean().sqrt()
""",
    "import torch\ndef compute_metrics(a, b):\n    return ((a - b) ** 2).sum(1).sqrt().mean()\n",
    "import torch\ndef disc(n: int, w: float):\n    f = torch.randn(n, 2)\n    return f.square().sum(1).sqrt() * w\n",
    """
import torch
class Points(torch.nn.Module):
    def forward(self, x, pos_i, pos_j):
        difference = pos_j - pos_i
        distance = torch.sqrt((difference * difference).sum(1))
        described = torch.cat([x, distance])
        return self.layer(described)
""",
    "import torch\ndef rms(grad):\n    return torch.sqrt(torch.sum(grad.pow(2), dim=0))\n",
    "import torch\ndef distance(a, b):\n    return torch.sqrt(((a - b) ** 2).sum(-1) + 1e-8)\n",
    "import torch\ndef evaluate(a, b):\n    return torch.sqrt(((a - b) ** 2).mean())\n",
    "import torch\ndef scale(d):\n    return torch.sqrt(torch.tensor(d))\n",
]
