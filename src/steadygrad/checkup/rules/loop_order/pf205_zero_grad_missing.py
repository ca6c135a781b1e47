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
    A file that hands its step to a framework is not reported.

References
    https://github.com/pytorch/pytorch/issues/47175
    https://github.com/snakers4/silero-vad/pull/699
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import hands_over, innermost_loop, loops
from ...inputs.script import Script

RULE = Rule("PF205", "zero_grad_missing", "Nothing ever clears the gradients.")


def of_script(script: Script) -> Iterator[Advice]:
    """One finding a file. A single step outside any loop needs no clearing."""
    if hands_over(script) or any("zero_grad" in word or "zero_gradient" in word for word in script.words):
        return
    found = loops(script)
    if any(event.kind == "zero_grad" for events in found for event in events) or "grad.zero_()" in script.text:
        return
    for events in found:
        step = next(event for event in events if event.kind in ("step", "scaler_step"))
        if innermost_loop(script, step.node) is not None:
            yield at(
                RULE, Level.ERROR, script, step.node, "gradients of all batches add up: nothing clears them",
                help="call optimizer.zero_grad() once a step",
            )  # fmt: skip
            return


SPECIMENS = [
    """
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    model(x).sum().backward()
    optimizer.step()
""",
]
NEAR_MISSES = [
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
