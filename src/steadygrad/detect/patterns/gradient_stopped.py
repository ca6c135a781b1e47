"""A module that had learned has received no gradient for a while.

What it sees
    At the end of the steps: all parameters of a module had a gradient of exactly zero in the last six, had one before,
    are held by an optimizer and used by forward.

Why it hurts
    A part of the model has stopped learning while the rest goes on: a unit that died, a branch that is never chosen
    any more, a graph that is cut after some step.

Smallest example
    hidden = encoder(x) if step < 100 else encoder(x).detach()
    # fixed
    hidden = encoder(x)

What to do
    Look at what changed at that step: a schedule, a switch, activations that saturate.

Safety
    It changes nothing. A part whose turn comes every few steps, and a loss of exactly zero, are not reported.

References
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from __future__ import annotations

from ...records.rules import Rule
from ..observations.observed_run import NotAsked, ObservedRun, Suspicion
from ..observations.step_observation import Gradient, StepObservation, owner

RULE = Rule("SY409", "gradient_stopped", "A module that had learned has received no gradient for a while.")
STOPPED = 6
"""Steps at the end of a run without any gradient, after some with one, before that is called a fault."""


def suspect(run: ObservedRun) -> Suspicion | None:
    """Looks at the last six steps; asks which parameters are used only where some have stopped."""
    silent = run.steps[-STOPPED:]
    if len(run.steps) <= STOPPED or not all(observed.backward_ran for observed in silent):
        return None
    names = [name for name in run.last.trainable if name in run.last.held]
    starved = [name for name in names if all(observed.gradient_norm(name) == 0.0 for observed in silent)]
    learning = {owner(name) for name in names if name not in starved}
    starved = [name for name in starved if owner(name) not in learning and _had_gradient(run, name)]
    if not starved or all(observed.loss == 0 for observed in silent):
        return None
    used = run.ask.parameters_read()
    starved = [name for name in starved if name in used]
    if not starved:
        return None
    last = max(at for at, each in enumerate(run.steps) for name in starved if each.gradient_norm(name) > 0)
    step = run.steps[last + 1].step
    return Suspicion(symptom="silent", step=step, kind="zero_gradient", names=tuple(starved), code=RULE.code)


def _had_gradient(run: ObservedRun, name: str) -> bool:
    return any(observed.gradient_norm(name) > 0 for observed in run.steps)


class _Used(NotAsked):
    def parameters_read(self) -> frozenset[str]:
        return frozenset({"encoder.weight", "head.weight"})


def _run(*norms: float) -> ObservedRun:
    steps = [
        StepObservation(
            step=number,
            terms={"loss": 1.0},
            stepped=True,
            trainable=("encoder.weight", "head.weight"),
            held=frozenset({"encoder.weight", "head.weight"}),
            gradients={
                "encoder.weight": Gradient("encoder.weight", True, norm, norm),
                "head.weight": Gradient("head.weight", True, 1.0, 1.0),
            },
        )
        for number, norm in enumerate(norms)
    ]
    return ObservedRun(_Used(), steps)


def SPECIMEN() -> ObservedRun:
    return _run(1.0, 1.0, *[0.0] * STOPPED)


def NEAR_MISS() -> ObservedRun:
    """Its turn comes every fourth step."""
    return _run(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
