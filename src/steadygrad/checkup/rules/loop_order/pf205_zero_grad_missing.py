"""Nothing ever clears the gradients.

What it sees
    A loop with backward and an optimizer step in a file without zero_grad and without setting `.grad` to None.

Why it hurts
    torch adds each batch's gradient to the last. The steps grow with every batch until the loss blows up.

Smallest example
    for x in loader: model(x).backward(); optimizer.step()
    # fixed
    for x in loader: optimizer.zero_grad(); model(x).backward(); optimizer.step()

What to do
    `optimizer.zero_grad()` at the start or the end of every step, or at the end of every accumulation window.

Safety
    A file that hands its step to a framework is not reported. A note where the file does not make the optimizer, whose
    step may clear the gradients itself, where the loop makes a new one each time, and where it only counts or the file
    measures, as demonstrations do.

References
    https://github.com/pytorch/pytorch/issues/47175
    https://github.com/snakers4/silero-vad/pull/699
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import LoopCall, hands_over, innermost_loop, learns_from_data, loops, zeroes_gradient
from ...inputs.script import Script, last_word
from ...inputs.script_models import optimizer_calls

RULE = Rule("PF205", "zero_grad_missing", "Nothing ever clears the gradients.")


def of_script(script: Script) -> Iterator[Advice]:
    """One finding a file. A single step outside any loop needs no clearing."""
    if hands_over(script) or any("zero_grad" in word or "zero_gradient" in word for word in script.words):
        return
    found = loops(script)
    if any(event.kind == "zero_grad" for events in found for event in events) or "grad.zero_()" in script.text:
        return
    if any(isinstance(node, ast.stmt) and zeroes_gradient(node) for node in script.nodes):
        return
    for events in found:
        step = next(event for event in events if event.kind in ("step", "scaler_step"))
        if innermost_loop(script, step.node) is not None:
            shown = _is_made_before(script, step) and learns_from_data(script, step.node)
            level = Level.ERROR if shown else Level.NOTE
            yield at(
                RULE, level, script, step.node, "gradients of all batches add up: nothing clears them",
                help="call optimizer.zero_grad() once a step",
            )  # fmt: skip
            return


def _is_made_before(script: Script, step: LoopCall) -> bool:
    """Whether the file makes the optimizer that steps, and does so outside of the loop."""
    loop = innermost_loop(script, step.node)
    for call in optimizer_calls(script):
        kept = script.parents.get(call)
        names = {last_word(target) for target in kept.targets} if isinstance(kept, ast.Assign) else set()
        if step.owner.rpartition(".")[2] in names and loop not in script.above(call):
            return True
    return False


SPECIMENS = [
    """
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    model(x).sum().backward()
    optimizer.step()
""",
]
WARNINGS = SPECIMENS
ONLY_NOTES = [
    SPECIMENS[0].replace("torch.optim.SGD", "make_optimizer"),
    """
for x in loader:
    delta = torch.zeros_like(x, requires_grad=True)
    optimizer = torch.optim.SGD([delta], lr=0.1)
    attack(model, x + delta).backward()
    optimizer.step()
""",
    """
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
for i in range(10):
    inp = torch.rand(20, 10).cuda(rank)
    output = model(inp)
    output.sum().backward()
    optimizer.step()
""",
]
NEAR_MISSES = [
    SPECIMENS[0] + "    for p in model.parameters():\n        p.grad.data.fill_(0)\n",
    """
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    for p in model.parameters():
        p.grad = None
    model(x).sum().backward()
    optimizer.step()
""",
    """
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(x).sum().backward()
optimizer.step()
""",
]
