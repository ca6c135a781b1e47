"""One gradient grew a thousandfold between backward and update.

What it sees
    A parameter's gradient was more than a thousand times the norm of the whole gradient when the optimizer took it,
    while most others were as backward had made them.

Why it hurts
    Something wrote to it in between: a hook, an in-place operation on a shared tensor, a fault of the hardware. One
    such update replaces what the parameter had learned.

Smallest example
    loss.backward(); model.head.weight.grad[0, 0] = 1e30; optimizer.step()
    # fixed
    loss.backward(); optimizer.step()   # nothing writes to a gradient in between

What to do
    Look at hooks on the parameter and at what runs between backward and update. If nothing does, test the memory.

Safety
    It changes nothing. A loss scale that was never removed lifts all gradients alike and is not reported here.

References
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_post_accumulate_grad_hook.html
"""

from __future__ import annotations

import math

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import Gradient, StepObservation

RULE = Rule("SY414", "gradient_changed_after_backward", "One gradient grew a thousandfold between backward and update.")
TAMPERED = 1e3
"""Gradients that grow by this much between backward and update were changed by something else."""


def suspect(run: ObservedRun) -> Suspicion | None:
    """Pure; looks at the last step."""
    observed = run.last
    if observed.bad_gradients:
        return None
    grown = grown_gradients(observed)
    if not grown:
        return None
    return Suspicion(symptom="spike", step=observed.step, kind="tampered_gradient", names=grown, code=RULE.code)


def grown_gradients(observed: StepObservation) -> tuple[str, ...]:
    """Gradients that were a thousand times larger when the optimizer took them than when backward had made them."""
    scale = observed.loss_scale or 1.0
    total = observed.grad_norm / scale
    if not math.isfinite(total) or total <= 0:
        return ()
    limit = TAMPERED * max(total, 1e-12)
    grown = [name for name, size in observed.entering.items() if size > limit and name in observed.gradients]
    # A scale that was never removed lifts all of them alike; a fault lifts one.
    return tuple(grown) if 2 * len(grown) < len(observed.entering) else ()


def _run(**entering: float) -> ObservedRun:
    step = StepObservation(
        step=6,
        terms={"loss": 1.0},
        stepped=True,
        gradients={name: Gradient(name, True, 1.0, 0.5) for name in entering},
        entering=entering,
    )
    return ObservedRun(NotAsked(), [step])


def SPECIMEN() -> ObservedRun:
    return _run(embed=1.0, body=1.0, head=1e30)


def NEAR_MISS() -> ObservedRun:
    """The loss scale is still on all of them."""
    return _run(embed=65536.0, body=65536.0, head=65536.0)
