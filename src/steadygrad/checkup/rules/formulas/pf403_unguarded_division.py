"""A division by a sum, count or norm that may be zero.

What it sees
    `x / x.sum()`, `x / x.norm()`, a scale without a floor (`x / x.abs().max()`, or that over 127), or anything divided
    by the sum of a mask or of a comparison, with nothing that keeps the divisor from zero.

Why it hurts
    One row with an empty mask, or one zero vector, is enough: 0/0 is NaN, and the mean over the batch spreads it.

Smallest example
    loss = (per_token * mask).sum() / mask.sum()
    # fixed
    loss = (per_token * mask).sum() / mask.sum().clamp(min=1)

What to do
    `/ mask.sum().clamp(min=1)` for counts; `F.normalize(x, dim=-1)` for vectors.

Safety
    Exact where the divisor was not zero. Divisors that are positive by nature (exp, softmax) are not reported. A
    warning where the file itself empties whole rows of a mask (`mask[20:24] = 0`); elsewhere a note, for whether a
    batch without a label or a zero vector ever comes is decided by the data.

References
    https://github.com/OpenRLHF/OpenRLHF/pull/583
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import ends
from ...inputs.loss_expressions import asked_before, bare, is_positive, names_in
from ...inputs.script import Op, Script, last_word

RULE = Rule("PF403", "unguarded_division", "A division by a sum, count or norm that may be zero.")
GATHERS = {"gather", "all_gather", "gather_for_metrics", "gather_object", "reduce"}
ASKS = {"any", "sum", "numel", "nelement", "count_nonzero", "all"}


def of_script(script: Script) -> Iterator[Advice]:
    """Only divisors that are plainly a sum or a norm; anything added to them counts as a guard."""
    if not script.imports("torch"):
        return
    for node in script.nodes:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)) or script.untracked(node):
            continue
        divisor = script.op(_plain(script, node.right))
        if divisor is None or divisor.operand is None or not divisor.of_torch:
            continue
        if asked_before(script, node, node.right) or _is_asked(script, node):
            continue
        logged = _is_counted(script, node.left) or _is_gathered(script, node)
        what = "" if logged else _kind(script, node.left, divisor)
        found = ends(script, node) if what else set()
        if what and (what == "norm" or found != {"looked at"}):
            shown = what == "count" and "loss" in found and _is_emptied(script, divisor.operand)
            yield at(
                RULE, Level.WARNING if shown else Level.NOTE, script, node,
                f"divides by {ast.unparse(node.right)}, which may be zero",
                help=".clamp(min=1) on the divisor" if what == "count" else "torch.nn.functional.normalize, or a floor",
            )  # fmt: skip


def _is_emptied(script: Script, mask: ast.expr) -> bool:
    """Whether the function is given the mask, and another one sets whole rows of such a mask to zero:
    `mask = torch.ones(64, 6)`, then `mask[20:24] = 0`."""
    function = script.scope(mask)
    given = {each.arg for each in function.args.args} if isinstance(function, ast.FunctionDef) else set()
    if not (isinstance(mask, ast.Name) and mask.id in given):
        return False
    kind = ast.unparse(mask).rpartition(".")[2].rpartition("_")[2]
    for node in script.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        place = node.targets[0]
        rows = place.slice if isinstance(place.slice, ast.Slice | ast.Constant) else None
        named = isinstance(place.value, ast.Name) and place.value.id.rpartition("_")[2] == kind
        made = script.op(script.value_of(place.value))
        if script.scope(node) is function or rows is None or not named or made is None:
            continue
        full = made.name in ("ones", "zeros", "full", "rand") and len(made.call.args) > 1
        if full and script.literal(node.value) in (0, 0.0, False):
            return True
    return False


def _is_gathered(script: Script, node: ast.BinOp) -> bool:
    """An average of what other processes computed, which is logged and has no gradient."""
    names = [each for each in ast.walk(node.left) if isinstance(each, ast.Name)]
    made = [script.value_of(each) for each in names]
    return any(isinstance(each, ast.Call) and last_word(each.func) in GATHERS for each in made)


def _is_asked(script: Script, node: ast.BinOp) -> bool:
    """Whether a condition anywhere in the function asks if the count is zero, or if there is anything to count."""
    count = node.right.id if isinstance(node.right, ast.Name) else ""
    origin = script.follow(node.right)
    words = (names_in(node.right) | (names_in(origin) if origin is not None else set())) - {"sum", "torch"}
    tests = [each.test for each in ast.walk(script.scope(node)) if isinstance(each, ast.If | ast.IfExp | ast.Assert)]
    for part in (part for test in tests for part in ast.walk(test)):
        if isinstance(part, ast.Compare) and count and count in names_in(part.left):
            return True
        if isinstance(part, ast.Call) and last_word(part.func) in ASKS and names_in(part) & words:
            return True
    return False


def _is_counted(script: Script, node: ast.expr | None, depth: int = 4) -> bool:
    """How often something is equal, as in an accuracy: a number that has no gradient and is in no loss."""
    found = bare(script, node) if node is not None else None
    if found is None or depth == 0:
        return False
    if isinstance(found, ast.Compare):
        return True
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr in ("item", "eq"):
        return True
    op = script.op(found)
    if op is not None and op.name in ("sum", "float", "eq", "mean") and op.operand is not None:
        return op.name == "eq" or _is_counted(script, op.operand, depth - 1)
    if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr in ("float", "double"):
        return _is_counted(script, found.func.value, depth - 1)
    return False


def _plain(script: Script, node: ast.expr) -> ast.expr | None:
    """Behind names and views, and behind a division or product by a constant: `x.abs().max() / 127`."""
    found = bare(script, node)
    for _ in range(8):  # a function may return a part of what it returns
        if not (isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div | ast.Mult)):
            break
        if not isinstance(script.literal(found.right), int | float):
            break
        found = bare(script, found.left)
    return found


def _kind(script: Script, numerator: ast.expr, divisor: Op) -> str:
    """What the divisor is: a count, the numerator's own sum or norm, or nothing that is judged."""
    operand = divisor.operand
    assert operand is not None
    if is_positive(script, operand):
        return ""
    text = ast.unparse(operand)
    if divisor.name == "sum":
        source = bare(script, operand)
        if isinstance(source, ast.Compare) or _is_mask(last_word(operand)):
            return "count"
        inner = script.op(source)
        if inner is not None and inner.name in ("ne", "eq", "gt", "ge", "lt"):
            return "count"
    if divisor.name in ("sum", "norm") and ast.unparse(numerator) == text and not isinstance(operand, ast.Constant):
        return "norm"
    if divisor.name in ("max", "amax") and all(isinstance(script.literal(each), int) for each in _dims(divisor)):
        largest = script.op(operand)
        if largest is not None and largest.name == "abs" and largest.operand is not None:
            return "norm" if ast.unparse(largest.operand) == ast.unparse(numerator) else ""
    return ""


def _dims(op: Op) -> list[ast.expr]:
    """What a reduction is given beside its operand."""
    return list(op.call.args if op.module == "tensor" else op.call.args[1:])


def _is_mask(name: str) -> bool:
    return "mask" in name.lower() and "causal" not in name.lower()


SPECIMENS = [
    "import torch\ndef f(text_loss, text_mask):\n    return (text_loss * text_mask).sum() / text_mask.sum()\n",
    "import torch\ndef quantised(w):\n    scale = w.abs().amax(-1, keepdim=True) / 127\n    return w / scale\n",
    "import torch\ndef loss_fn(t, mask):\n    return (t * mask).sum() / mask.sum()\n",
    "import torch\ndef f(t, loss_mask):\n    return (t * loss_mask).sum() / loss_mask.sum()\n",
    "import torch\ndef loss_fn(t, labels):\n    n = (labels != -100).sum()\n    return t.sum() / n\n",
    "import torch\ndef f(x):\n    return x / x.norm(dim=-1, keepdim=True)\n",
]
_EMPTIED = """
import torch
class Model(torch.nn.Module):
    def forward(self, tokens, text_mask):
        losses = self.losses(tokens)
        text_loss = (losses * text_mask).sum() / text_mask.sum()
        return text_loss
def batches():
    mask = torch.ones({shape})
    mask[{rows}] = 0
    return mask
"""
WARNINGS = [_EMPTIED.format(shape="64, 6", rows="20:24")]
ONLY_NOTES = [
    *SPECIMENS,
    _EMPTIED.format(shape="64, 6", rows=":, 3"),
    _EMPTIED.format(shape="64", rows="20:24"),
    "import torch\ndef f(t, target):\n    mask = target.abs().ne(0)\n    return (t * mask).sum() / mask.sum()\n",
    "import torch\ndef pool(t, attention_mask):\n    return t.sum(1) / attention_mask.sum(1, keepdim=True)\n",
]
NEAR_MISSES = [
    """
import torch
def log(accelerator, losses):
    losses = accelerator.gather(losses)
    loss_mask = losses != 0
    return (losses * loss_mask).sum() / loss_mask.sum()
""",
    """
import torch
def loss_fn(t, labels):
    num = (labels != -100).sum(-1)
    loss = t.sum(-1) / num
    if (num == 0).any():
        loss = loss.masked_fill(num == 0, 0.0)
    return loss
""",
    """
import torch
def loss_fn(t, valid_mask):
    if not valid_mask.any():
        return t.sum() * 0
    return (t * valid_mask).sum() / valid_mask.sum()
""",
    "import torch\ndef step(p, target):\n    return p.eq(target).sum().item() / (target != -100).sum()\n",
    "import torch\ndef step(p, y, mask):\n    hit = p == y\n    return torch.sum(hit.float()) / torch.sum(mask)\n",
    "import torch\ndef f(t, mask):\n    n = mask.sum()\n    return 0 if mask.sum() == 0 else (t * mask).sum() / n\n",
    "import torch\ndef quantised(w):\n    scale = w.abs().max().clamp(min=1e-5) / 127\n    return w / scale\n",
    "import torch\ndef loss_fn(t, mask):\n    return (t * mask).sum() / mask.sum().clamp(min=1)\n",
    "import torch\ndef loss_fn(t, mask):\n    return (t * mask).sum() / (mask.sum() + 1e-8)\n",
    "import torch\ndef f(x):\n    w = torch.exp(x)\n    return w / w.sum(-1, keepdim=True)\n",
    """
import torch
def loss_fn(t, mask):
    if mask.sum() > 0:
        return (t * mask).sum() / mask.sum()
    return t.sum() * 0
""",
    "import torch\ndef loss_fn(t, n):\n    return t.sum() / n\n",
]
