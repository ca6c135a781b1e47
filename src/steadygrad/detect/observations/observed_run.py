"""Steps that were observed one after another, and what the rules make of them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .step_observation import StepObservation

PATIENCE = 3
"""Steps a silent pattern must hold before it is called one: a LoRA factor has no gradient in its first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What was seen and since when, by which rule. `kind` is finer than the symptom: zero_gradient, unmoved ..."""

    symptom: str
    step: int
    kind: str
    names: tuple[str, ...] = ()
    detail: str = ""
    code: str = ""


class Questions(Protocol):
    """What can be asked of the owner of the steps about the last one. Asked only in doubt: an answer costs a replay."""

    def overflow_is_the_scalers(self) -> bool:
        """Whether the gradient is finite once the loss scale is taken away."""
        ...

    def parameters_read(self) -> frozenset[str]:
        """The parameters that a forward pass uses: one that is never called is not missed."""
        ...

    def loss_now(self, step: int) -> float | None:
        """The loss of an earlier step's batch under the weights of now; None where that cannot be known."""
        ...

    def hides_a_nan(self) -> bool:
        """Whether a NaN came up in the step that the loss does not show."""
        ...


@dataclass(slots=True)
class ObservedRun:
    """The steps so far, in a row; `add` each one and ask `suspect`, and `conclude` when there are no more."""

    ask: Questions
    steps: list[StepObservation] = field(default_factory=list)
    overflows: int = 0
    """Steps in a row whose gradient was not finite."""
    buffer_in_doubt: Suspicion | None = None
    """A buffer that the last step made bad, while all else is finite."""
    _used: frozenset[str] | None = None

    def add(self, observed: StepObservation) -> None:
        self.steps.append(observed)
        self.overflows = self.overflows + 1 if observed.bad_gradients and observed.loss_finite else 0

    @property
    def last(self) -> StepObservation:
        return self.steps[-1]

    def recent(self, count: int = PATIENCE) -> list[StepObservation]:
        """The last steps, or none where there are not yet so many."""
        return self.steps[-count:] if len(self.steps) >= count else []

    def with_update(self) -> list[StepObservation]:
        """The steps that could move a weight."""
        return [observed for observed in self.steps if observed.stepped and observed.rate > 0]

    def used(self) -> frozenset[str]:
        """The parameters that a forward pass uses; asked once."""
        if self._used is None:
            self._used = self.ask.parameters_read()
        return self._used

    def suspect(self) -> Suspicion | None:
        """What the first rule that reports anything says of the steps so far."""
        from ..patterns import EACH_STEP

        return next((found for rule in EACH_STEP if (found := rule(self)) is not None), None)

    def conclude(self) -> Suspicion | None:
        """At the end of the steps: what had no time to be confirmed, and what only the end can show."""
        from ..patterns import AT_THE_END

        return next((found for rule in AT_THE_END if (found := rule(self)) is not None), None)


class NotAsked:
    """Answers that change nothing: for steps whose owner cannot run them again."""

    def overflow_is_the_scalers(self) -> bool:
        return True

    def parameters_read(self) -> frozenset[str]:
        return frozenset()

    def loss_now(self, step: int) -> float | None:
        return None

    def hides_a_nan(self) -> bool:
        return False
