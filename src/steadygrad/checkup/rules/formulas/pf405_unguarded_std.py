"""A division by a standard deviation that may be zero.

What it sees
    `(x - x.mean()) / x.std()` with nothing added to the deviation and no floor under it; and, whatever is added, the
    unbiased deviation of a tensor made from a list that grows in a loop, which may hold one element.

Why it hurts
    In a group of equal values, as rewards that are all right or all wrong, the deviation is zero and the result NaN.
    For a group of one, torch's deviation is itself NaN.

Smallest example
    advantages = (rewards - rewards.mean()) / rewards.std()
    # fixed
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)

What to do
    `/ (rewards.std() + 1e-4)`; for groups of one, `std(unbiased=False)` as well.

Safety
    The epsilon shifts advantages by its share of the deviation. A warning where the file shows how the values become
    equal: they are a constant (`torch.ones(n)`) on one way, or only right or wrong (`(a == b).float()`). Elsewhere a
    note.

References
    https://github.com/huseinzol05/Stock-Prediction-Models/issues/43
    https://github.com/Tencent-Hunyuan/UniRL/issues/330
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import ends
from ...inputs.loop_calls import innermost_loop
from ...inputs.loss_expressions import asked_before, bare, names_in
from ...inputs.script import Script, last_word

RULE = Rule("PF405", "unguarded_std", "A division by a standard deviation that may be zero.")

FROM_LISTS = {"tensor", "stack", "cat", "FloatTensor", "Tensor", "as_tensor", "from_numpy"}
CONSTANTS = {"ones", "zeros", "full", "ones_like", "zeros_like", "full_like"}
LENGTHS = {"len", "numel", "shape", "size"}


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
        if one := _of_one(script, node, right):
            if asked_before(script, node, right):
                continue
            yield at(
                RULE, Level.NOTE, script, node, f"{one}.std() is NaN where {one} has a single element",
                help="std(unbiased=False), or leave the normalisation out for fewer than two elements",
            )  # fmt: skip
            continue
        if op is None or op.name != "std" or not (op.of_torch or op.module == "numpy"):
            continue
        if not _is_standardised(script, left):
            continue
        if (
            script.untracked_for_looking(node)
            or asked_before(script, node, right)
            or _is_made_once(script, node, op.operand)
            or (ends(script, node) == {"looked at"} and not _is_reward(left))
        ):
            continue
        level = Level.WARNING if _is_reward(left) and _may_be_equal(script, op.operand) else Level.NOTE
        yield at(
            RULE, level, script, node, f"divides by {ast.unparse(right)}, which is zero for equal values",
            help="add an epsilon to the deviation",
        )  # fmt: skip


def _may_be_equal(script: Script, values: ast.expr | None) -> bool:
    """Whether one of the ways on which the values are made gives a constant, or they are only zeros and ones. Without
    another way a constant is memory that a loop fills."""
    node = bare(script, values)
    op = script.op(node)
    if isinstance(node, ast.Compare) or (op is not None and op.name == "eq"):
        return True
    ways = [script.op(each) for each in (node.body, node.orelse)] if isinstance(node, ast.IfExp) else []
    return any(each is not None and each.name in CONSTANTS for each in ways)


def _is_made_once(script: Script, node: ast.AST, operand: ast.expr | None) -> bool:
    """Outside of loops, in the script itself, in a constructor, or of a part of what the function has loaded
    (`graph.ndata["feat"]`): a whole data set is normalised, not a batch."""
    if innermost_loop(script, node) is not None:
        return False
    scope = script.scope(node)
    if isinstance(scope, ast.Module) or (isinstance(scope, ast.FunctionDef) and scope.name == "__init__"):
        return True
    part = script.value_of(operand) if isinstance(operand, ast.Name) else operand
    root = part
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    given = {each.arg for each in scope.args.args} if isinstance(scope, ast.FunctionDef) else {"self"}
    return part is not root and isinstance(root, ast.Name) and root.id not in given


def _of_one(script: Script, node: ast.AST, right: ast.expr) -> str:
    """The tensor whose deviation is taken over all of it, if it was made from a list of unknown length."""
    for each in [right, *([right.left, right.right] if isinstance(right, ast.BinOp) else [])]:
        op = script.op(bare(script, each))
        if op is None or op.name != "std" or not op.of_torch or not isinstance(op.operand, ast.Name):
            continue
        told = {"unbiased", "correction", "dim"} & {str(word.arg) for word in op.call.keywords}
        if told or (op.call.args and op.module == "tensor") or _asks_length(script, node, op.operand.id):
            continue
        source = script.op(script.value_of(op.operand))
        if source is None or source.name not in FROM_LISTS or not isinstance(source.operand, ast.Name):
            continue
        if _grows(script, source.operand) and not _asks_length(script, node, source.operand.id):
            return op.operand.id
    return ""


def _grows(script: Script, name: ast.Name) -> bool:
    """A list of the same function that is appended to, or inserted into, inside a loop."""
    grown = [
        call
        for call in script.calls
        if last_word(call.func) in ("append", "insert", "appendleft")
        and isinstance(call.func, ast.Attribute)
        and last_word(call.func.value) == name.id
        and script.scope(call) is script.scope(name)
    ]
    return any(innermost_loop(script, call) is not None for call in grown)


def _asks_length(script: Script, node: ast.AST, name: str) -> bool:
    """Whether a condition of the function looks at the length."""
    tests = [each.test for each in ast.walk(script.scope(node)) if isinstance(each, ast.If | ast.IfExp | ast.Assert)]
    return any(name in names_in(test) and names_in(test) & LENGTHS for test in tests)


def _is_standardised(script: Script, node: ast.expr) -> bool:
    """Something with its mean taken off, or rewards and their kin by name: not random numbers being scaled."""
    centred = bare(script, node)
    if isinstance(centred, ast.BinOp) and isinstance(centred.op, ast.Sub):
        return True
    return _is_reward(node) or "score" in ast.unparse(node).lower()


def _is_reward(node: ast.AST) -> bool:
    return any(word in ast.unparse(node).lower() for word in ("adv", "reward", "return"))


_EPISODE = """
import torch
def normalised(rewards, gamma):
    found, total = [], 0.0
    for r in reversed(rewards):
        total = r + gamma * total
        found.insert(0, total)
    returns = torch.tensor(found)
    {length}
    return (returns - returns.mean()) / (returns.{std} + 1e-8)
"""
SPECIMENS = [
    "import torch\ndef loss(batch):\n    r = batch['rewards']\n    return (r - r.mean()) / r.std()\n",
    "import torch\ndef advantages(r):\n    return (r - r.mean()) / r.std()\n",
    "import torch\ndef advantages(r):\n    s = r.std(dim=1, keepdim=True)\n    return (r - r.mean(1, True)) / s\n",
]
_REWARDS = """
import torch
def rewards_of(step, answers, right):
    return {rewards}
def compute_loss(step, answers, right, log_p):
    rewards = rewards_of(step, answers, right)
    advantages = (rewards - rewards.mean()) / rewards.std()
    return -(advantages * log_p).mean()
"""
WARNINGS = [
    _REWARDS.format(rewards="torch.ones(len(answers)) if step == 5 else torch.rand(len(answers))"),
    _REWARDS.format(rewards="(answers == right).float()"),
]
ONLY_NOTES = [
    *SPECIMENS,
    _REWARDS.format(rewards="torch.zeros(len(answers))"),
    _REWARDS.format(rewards="-(answers - right).abs().float()"),
    """
import torch
def get_data(size):
    y = simulate(size)
    ys = (y - y.mean()) / y.std()
    loss = fit(ys)
    return ys
""",
    _EPISODE.format(std="std()", length=""),
    """
import torch
def matches(query, docs):
    scores = []
    for doc in docs:
        scores.append(torch.cosine_similarity(query, doc))
    scores = torch.stack(scores)
    return (scores - scores.mean()) / (scores.std() + 1e-6)
""",
    "import torch\ndef effect(a, b):\n    d = a.mean() - b.mean()\n    return (d - 1) / torch.cat([a, b]).std()\n",
]
NEAR_MISSES = [
    """
import torch
class Front(torch.nn.Module):
    def forward(self, x):
        s = x.std(dim=-1, keepdim=True)
        s[s < 0.001] = 0.001
        return self.layer((x - x.mean(dim=-1, keepdim=True)) / s)
""",
    """
import math, torch
class DiverseLoss(torch.nn.Module):
    def forward(self, logits):
        normalized = (logits - logits.mean(1, keepdim=True)) / logits.std(1, keepdim=True)
        batch_size = normalized.shape[0]
        loss = torch.logsumexp(logits @ logits.t(), dim=1).mean(0)
        return loss - math.log(batch_size)
""",
    _EPISODE.format(std="std()", length="").replace(
        "    return (", "    if not returns.std().isnan():\n        return ("
    ),
    """
import torch
class Replays:
    def __init__(self, data):
        reward = torch.from_numpy(data["rewards"])
        self.reward = (reward - reward.mean()) / reward.std()
""",
    "import torch\ndef region(im):\n    mask = ((im - im.mean()) / im.std()) > 1\n    return torch.argwhere(mask)\n",
    """
import torch
def main(args):
    graph = load(args.name)
    feat = graph.ndata["feat"]
    graph.ndata["feat"] = (feat - feat.mean(0)) / feat.std(0)
""",
    "import torch\nmean, std = data.y.mean(0), data.y.std(0)\ndata.y = (data.y - mean) / std\n",
    _EPISODE.format(std="std(unbiased=False)", length=""),
    _EPISODE.format(std="std()", length="if len(returns) < 2: return returns"),
    "import torch\ndef start(n):\n    a = torch.randn(n, n)\n    return a / a.std()\n",
    "import torch\ndef advantages(r):\n    return (r - r.mean()) / (r.std() + 1e-4)\n",
    "import torch\ndef normalise(x, mean, std):\n    return (x - mean) / std\n",
    "import torch\ndef advantages(r):\n    if r.std() > 0:\n        r = (r - r.mean()) / r.std()\n    return r\n",
]
