"""Runs the sampled checks around the step: vitals on a schedule, and the audit of what a model changes by itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from ..records import Finding, Reading, Severity
from .books import Books
from .forward_state import ForwardState
from .shield import Shield

_AUDIT_STEPS = frozenset({0, 1, 2})
_AUDIT_EVERY = 100


class Clerk:
    """Costs nothing on steps where nothing is due."""

    def __init__(self, books: Books, shield: Shield, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._books = books
        self._shield = shield
        self._vitals = None
        self._sampling = False

    def inspect_setup(self) -> None:
        """Look once at model and optimizers before the first step."""

    def before_forward(self, step: int) -> None: ...
    def before_update(self, step: int) -> None: ...
    def after_update(self) -> None: ...

    def after_forward(self, step: int, forward: ForwardState) -> None:
        """The audit, where due: at once after a forward, so that what it moved is known before the next one.

        Compares values (a host read) on the first steps only.
        """
        early = step in _AUDIT_STEPS
        if early or step % _AUDIT_EVERY == 0:
            with self._shield("audit", None):
                forward.audit(values=early)

    def after_step(self, reading: Reading) -> None:
        """After a landed step: the findings of a sampled one."""

    def _tell(self, findings: Sequence[Finding]) -> None:
        for found in findings:
            self._books.journal.event("vitals", code=found.code, step=found.step, detail=found.detail)
            if found.severity is not Severity.NOTE:
                self._books.show(f"{found.code} {found.slug}: {found.detail}", kind=found.code + found.subject)
