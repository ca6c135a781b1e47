"""backward() is called inside autocast.

What it sees
    A backward call within a `with torch.autocast(...)` block of the same function.

Why it hurts
    Backward already runs each operation in the dtype its forward had. Inside autocast, whatever backward computes anew
    (hooks, checkpointed blocks, double backward) is cast once more, and torch says not to.

Smallest example
    with torch.autocast("cuda"): loss = model(x); loss.backward()
    # fixed
    with torch.autocast("cuda"): loss = model(x)
    loss.backward()

What to do
    Leave the block before calling backward: dedent that line.

Safety
    A note: where nothing is recomputed in backward both ways give the same gradients.

References
    https://github.com/pytorch/pytorch/pull/177287
    https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.gradient_paths import measures
from ...inputs.loop_calls import kind_of
from ...inputs.script import FUNCTIONS, Script, keyword

RULE = Rule("PF107", "backward_inside_autocast", "backward() is called inside autocast.")


def of_script(script: Script) -> Iterator[Advice]:
    """A `with` around a function's call does not count: only what is in the same function."""
    for call in script.calls:
        if kind_of(call) == "backward" and not measures(script.path) and _inside_autocast(script, call):
            yield at(
                RULE, Level.NOTE, script, call, "backward runs inside autocast",
                help="end the autocast block after the loss is computed",
            )  # fmt: skip


def _inside_autocast(script: Script, call: ast.Call) -> bool:
    for node in script.above(call):
        if isinstance(node, FUNCTIONS):
            return False
        if isinstance(node, ast.With) and any(_switches_on(script, item.context_expr) for item in node.items):
            return True
    return False


def _switches_on(script: Script, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not script.dotted(node.func).endswith("autocast"):
        return False
    return script.literal(keyword(node, "enabled")) is not False


SPECIMENS = [
    """
import torch
for x in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
]
NEAR_MISSES = [
    """
import torch
for x in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    """
import torch
for x in loader:
    with torch.autocast("cuda", enabled=False):
        loss = model(x)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
]
