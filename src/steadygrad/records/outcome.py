"""What became of a step: a promise. Reading a field that the device has not answered yet waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .finding_and_decision import Decision, Finding
from .step_record import Reading


class Outcome:
    """The result of `guard.step(batch)`. Not reading it costs nothing; reading any field settles the step.

    Reading a field may wait for the GPU, where the step is judged one step late; `settled` never waits.

    Args:
        step: the number of the step.
        settle: called when a field is read before the step is settled.
        accumulating: the batch is part of a window that is not full yet, so no update was due.

    Returns:
        A lazy record: `applied`, `skipped`, `halted`, `decision`, `findings`, `loss`, `grad_norm`, `rolled_back_to`.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with sg.Guard(model, optimizer, lambda model, batch: model(batch).pow(2).mean()) as guard:
        ...     outcome = guard.step(torch.full((8, 4), float("inf")))
        >>> outcome.skipped, outcome.halted
        (True, False)
    """

    __slots__ = ("_decision", "_reading", "_settle", "accumulating", "applied_flag", "rolled_back_to", "step")

    def __init__(self, *, step: int, settle: Callable[[], None] | None = None, accumulating: bool = False) -> None:
        self.step = step
        self.accumulating = accumulating
        self.rolled_back_to: int | None = None
        self.applied_flag = False
        self._settle = settle
        self._decision: Decision | None = None
        self._reading: Reading | None = None

    def resolve(self, *, decision: Decision, reading: Reading | None, applied: bool) -> None:
        """Called once by the guard when the step is settled."""
        self._decision, self._reading, self.applied_flag, self._settle = decision, reading, applied, None

    def _wait(self) -> None:
        if self._settle is not None:
            settle, self._settle = self._settle, None
            settle()

    @property
    def settled(self) -> bool:
        """Whether the answer is already known; asking does not wait."""
        return self._settle is None

    @property
    def applied(self) -> bool:
        """True if an update was applied to the weights."""
        self._wait()
        return self.applied_flag

    @property
    def skipped(self) -> bool:
        """True if this batch was refused."""
        self._wait()
        return not self.applied_flag and not self.accumulating

    @property
    def halted(self) -> bool:
        self._wait()
        return self._decision is not None and "halt" in self._decision.actions

    @property
    def decision(self) -> Decision | None:
        self._wait()
        return self._decision

    @property
    def findings(self) -> tuple[Finding, ...]:
        self._wait()
        return self._decision.findings if self._decision else ()

    @property
    def loss(self) -> float | None:
        self._wait()
        return self._reading.loss if self._reading else None

    @property
    def grad_norm(self) -> float | None:
        """Total gradient norm before clipping."""
        self._wait()
        return self._reading.grad_norm if self._reading else None

    @property
    def reading(self) -> Reading | None:
        self._wait()
        return self._reading

    def __repr__(self) -> str:
        if not self.settled:
            return f"Outcome(step={self.step}, in flight)"
        word: Any = "accumulating" if self.accumulating else "applied" if self.applied_flag else "skipped"
        return f"Outcome(step={self.step}, {word}, loss={self.loss}, grad_norm={self.grad_norm})"
