"""What can be read off one step, or two in a row, by looking at their plain numbers alone."""

from __future__ import annotations

import math

from .seen import StepSeen

TAMPERED = 1e3
"""Gradients that grow by this much between backward and update were changed by somebody."""


def grown_gradients(seen: StepSeen) -> tuple[str, ...]:
    """Gradients that were a thousand times larger when the optimizer took them than when backward had made them."""
    scale = seen.loss_scale or 1.0
    total = seen.grad_norm / scale
    if not math.isfinite(total) or total <= 0:
        return ()
    grown = [n for n, size in seen.entering.items() if size > TAMPERED * max(total, 1e-12) and n in seen.gradients]
    # A scale that was never removed lifts all of them alike; a fault lifts one.
    return tuple(grown) if 2 * len(grown) < len(seen.entering) else ()


def written_between(before: StepSeen, now: StepSeen) -> frozenset[str]:
    """Parameters that somebody wrote between two steps: nearly all sampled entries differ from what the step left."""
    found = set()
    for name, then in before.samples_after.items():
        values = now.samples.get(name)
        alike = values is not None and len(values) == len(then)
        if values is not None and alike and sum(a != b for a, b in zip(values, then, strict=True)) > 0.9 * len(then):
            found.add(name)
    return frozenset(found)


def reached(seen: StepSeen) -> list[str]:
    """The parameters that came to the optimizer with a gradient."""
    return [name for name in seen.updates if seen.entering.get(name, 0.0) > 0]


def was_zeroed(seen: StepSeen, name: str) -> bool:
    """Whether backward gave this parameter a gradient, the optimizer got exact zeros, and moved it all the same."""
    gradient = seen.gradients.get(name)
    given = gradient is not None and gradient.present and gradient.finite and gradient.norm > 0
    return given and seen.entering.get(name, 1.0) == 0.0 and seen.updates.get(name, 0.0) > 0


def parts_of_their_own(still: tuple[str, ...], seen: StepSeen) -> tuple[str, ...]:
    """Of the tensors that stand still, those in whose module nothing moves, and that are no gains near one."""
    moving = {owner(name) for name in reached(seen) if name not in still}
    gains = {name for name in still if all(abs(value - 1.0) < 0.05 for value in seen.samples.get(name, ()))}
    return tuple(name for name in still if owner(name) not in moving and name not in gains)


def owner(name: str) -> str:
    return name.rpartition(".")[0]
