"""What a training loop asks of the diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..records import Diagnosis, Finding
from .flight import Window
from .past import Past
from .silent_trouble import Ear


class Clinic(Ear, Protocol):
    """What the engine asks of the diagnosis."""

    capsule: str
    max_grad_norm: float | None
    preserve: tuple[Any, ...]
    """Objects of the user's whose lists, dicts and counters a replay may change: restored after every call."""

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
