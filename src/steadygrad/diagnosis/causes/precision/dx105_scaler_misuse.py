"""The loss scale was applied, removed or clipped in the wrong order, or never adapts.

What it sees
    Gradients that enter the optimizer many times smaller or larger than the loss gave them; a fixed scale whose
    backward overflows and is finite without it.

Why it hurts
    Clipping before unscaling shrinks every update by the scale; a fixed scale overflows for good as soon as
    gradients grow.

Smallest example
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the gradients are still 65536 times too large
    scaler.step(optimizer)
    # fixed
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)

What to do
    Call scaler.unscale_(optimizer) first, once; let GradScaler choose the scale.

Safety
    Restores the arithmetic that was meant.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule(
    "DX105", "scaler_misuse", "The loss scale was applied, removed or clipped in the wrong order, or never adapts."
)


def match(e: Evidence) -> Match | None:
    if e.kind == "mis_sized":
        ratio = f"{e.entering_ratio:.3g}" if e.entering_ratio is not None else "far from 1"
        return Match(0.95, f"gradients enter the optimizer at {ratio} times the size the loss gave them")
    fixed = e.loss_scale is not None and e.loss_scale > 1 and not e.dynamic_scale
    if fixed and e.phase in ("backward", "optimizer") and e.unit_scale_finite and e.kind == "non_finite":
        return Match(0.96, f"backward overflows at the fixed scale {e.loss_scale:.6g} and is finite at 1")
    if e.dynamic_scale and e.phase == "backward" and e.unit_scale_finite and e.kind == "non_finite":
        return Match(0.9, "the scaler never came down to a scale at which backward is finite")
    return None
