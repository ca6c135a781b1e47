"""What the vitals warned of, taken to the diagnosis between two steps: a finding becomes an incident with a
diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..records import Diagnosis, Finding
from .flight import Window
from .past import Past

if TYPE_CHECKING:
    from ..config import GuardConfig
    from .owned_loop import OwnedLoop

ENOUGH_STEPS = 3
"""Good steps to look at before a pattern can be called one; what the set-up showed waits for them."""
MOST = 3
"""Diagnoses of silent trouble in a run; past that, findings stay findings."""


class Ear(Protocol):
    """The part of the diagnosis that is asked."""

    def look_into(
        self, findings: Sequence[Finding], steps: Sequence[Sequence[Any]], step: int, *, depth: str, past: Past | None
    ) -> tuple[Diagnosis, tuple[Finding, ...]] | None: ...


class SilentTrouble:
    """Asks once about each warning, of a settled state between two steps. Where there is none it is a comparison."""

    def __init__(self, loop: OwnedLoop, clinic: Ear, config: GuardConfig) -> None:
        self._engine, self._clinic = loop, clinic
        self._depth = {"auto": "full", "origin": "origin"}.get(config.diagnose)
        self._asked = 0

    def finish(self) -> None:
        """The run ends: ask about what was waiting for more steps."""
        with self._engine.shield("vitals", None):
            self._engine.parts.clerk.decide_provisional()
        self.look()

    def look(self) -> None:
        """Ask, if someone warned and this is a good moment: the model in training, no window open, nothing in flight.

        A few steps' time for each warning, on batches from just before. Ends as if nothing had happened.
        """
        engine = self._engine
        clerk = engine.parts.clerk
        if not clerk.suspects or engine.step < ENOUGH_STEPS or not engine.program.model.training:
            return
        engine.settle_pending()
        if len(engine.window) or engine.engine.halt is not None:
            return
        findings, clerk.suspects = clerk.suspects, []
        if self._depth is None or self._asked >= MOST:
            return
        with engine.shield("diagnosis", None), torch.inference_mode(False), torch.enable_grad():
            steps = engine.recovery.recent_good(Window())
            past = engine.recovery.past(Window(), engine.parts.followers.scheduler)
            answer = self._clinic.look_into(findings, steps, engine.step, depth=self._depth, past=past)
            if answer is not None:
                self._asked += 1
                diagnosis, told = answer
                engine.books.enter_silent(engine.step, told, diagnosis)
                engine.books.announce()
