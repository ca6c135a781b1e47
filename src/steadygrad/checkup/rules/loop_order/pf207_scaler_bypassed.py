"""The loss is scaled, and the step ignores the scaler.

What it sees
    `scaler.scale(loss).backward()` with `optimizer.step()` and no `scaler.step` in the file, or with no
    `scaler.update`.

Why it hurts
    `optimizer.step()` takes gradients that are up to 65536 times too large, and steps on infinite ones as well.
    Without `update` the scale never falls after an overflow, so that no step gets through any more.

Smallest example
    scaler.scale(loss).backward(); optimizer.step()
    # fixed
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()

What to do
    `scaler.step(optimizer)`, then `scaler.update()`.

Safety
    A file with both branches, with and without scaler, is fine, and so is a step that is given the scaler. A note where
    the file does not make a GradScaler: what scales there may be anything.

References
    https://github.com/IAHispano/Applio/pull/860
    https://github.com/Azure/MS-AMP/pull/45
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loop_calls import SCALER, hands_over, is_scaled, loops, owner_of
from ...inputs.script import Script, last_word

RULE = Rule("PF207", "scaler_bypassed", "The loss is scaled, and the step ignores the scaler.")


def of_script(script: Script) -> Iterator[Advice]:
    """Looks for `scaler.step` and `scaler.update` in the whole file before it speaks."""
    found = [events for events in loops(script) if any(is_scaled(e.node) for e in events if e.kind == "backward")]
    if not found or hands_over(script) or any(_is_given_scaler(call) for call in script.calls):
        return
    scalers = {owner_of(call) for call in script.calls if last_word(call.func) == "scale"}
    of_scaler = {last_word(call.func) for call in script.calls if _is_scaler(owner_of(call), scalers)}
    step = next(event for event in found[0] if event.kind in ("step", "scaler_step"))
    level = Level.ERROR if "GradScaler" in script.called else Level.NOTE
    if "step" not in of_scaler:
        yield at(
            RULE, level, script, step.node, "steps on gradients that still carry the loss scale",
            help="scaler.step(optimizer); scaler.update()",
        )  # fmt: skip
    elif "update" not in of_scaler:
        yield at(
            RULE, level, script, step.node, "the loss scale is never updated, so one overflow stops every step",
            help="call scaler.update() after scaler.step(optimizer)",
        )  # fmt: skip


def _is_scaler(owner: str, scalers: set[str]) -> bool:
    """By its name, or because it scales something: `amp.scale(loss).backward()`."""
    return owner in scalers or bool(SCALER.search(owner))


def _is_given_scaler(call: ast.Call) -> bool:
    """`optimizer.step("generator", scaler=scaler)`: whoever wrote that step unscales in it."""
    given = [*call.args, *(each.value for each in call.keywords)]
    return last_word(call.func) == "step" and any(SCALER.search(ast.unparse(each)) for each in given)


SPECIMENS = [
    """
import torch
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x)).backward()
    optimizer.step()
""",
    """
import torch
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x)).backward()
    scaler.step(optimizer)
""",
]
WARNINGS = ["scaler = torch.amp.GradScaler()\n" + specimen for specimen in SPECIMENS]
ONLY_NOTES = SPECIMENS
NEAR_MISSES = [
    """
amp = torch.cuda.amp.GradScaler()
for x in loader:
    if fp16:
        amp.scale(model(x)).backward()
        amp.step(opt)
        amp.update()
    else:
        model(x).backward()
        opt.step()
    opt.zero_grad()
""",
    WARNINGS[0].replace("optimizer.step()", "optimizer.step('generator', scaler=scaler)"),
    """
import torch
for x in loader:
    optimizer.zero_grad()
    if amp:
        scaler.scale(model(x)).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        model(x).backward()
        optimizer.step()
""",
]
