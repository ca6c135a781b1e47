"""What an engine is told once: how it works, and whom it asks why a step went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..records import Diagnosis, Finding
from .flight import Window
from .past import Past
from .silent_trouble import Ear


class Clinic(Ear, Protocol):
    """What the engine asks of the clinic."""

    capsule: str
    max_grad_norm: float | None

    def keep_capsule(self, window: Window, findings: Sequence[Finding]) -> None: ...

    def examine(
        self,
        window: Window,
        step: int,
        findings: tuple[Finding, ...],
        others: Sequence[Sequence[Any]],
        *,
        depth: str,
        past: Past | None = None,
    ) -> Diagnosis: ...

    def explain(self, window: Window, step: int, error: BaseException, *, depth: str) -> Diagnosis | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How an engine works: what its owner chose once."""

    max_grad_norm: float | None
    settle: str
    diagnose: str
    outside: bool = False
    """Somebody else runs forward and backward the first time, steps the schedule, and says where a window ends."""
