"""A second opinion before a divergence is believed: batches from before are asked again with the weights of now.

A loss may rise because the weights ran away, or because the data became harder: longer sequences, a curriculum, larger
returns. Weights that ran away are bad for every batch; harder data leaves the old batches as well off as they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..journal import Journal
from ..records import Finding, Reading, StepRecord
from .forward_state import ForwardState
from .program import StepProgram, TheirFault
from .tape import TapedBatch

RISEN = 2.0
"""An old batch whose loss has grown by this much has been harmed,"""
FAR_BELOW = 0.1
"""unless it is still this far below the loss of now: weights that ran away are as bad for the one as for the other."""
ASKED = 3
RECENT_STEPS = 3
"""Batches of the last few steps are part of the rise and are not asked."""
ASK_AGAIN_AFTER = 8
"""Steps for which an answer holds."""
_BUT = "but batches from before do as well as ever with these weights, so the data grew harder"


class SecondOpinion:
    """Asked only where a divergence was found. A few forward passes; forward state is put back bit for bit."""

    def __init__(self, program: StepProgram, forward: ForwardState, journal: Journal) -> None:
        self._program, self._forward, self._journal = program, forward, journal
        self._calm_at: int | None = None

    def of(
        self, reading: Reading, findings: Sequence[Finding], taped: Sequence[TapedBatch], recent: Sequence[StepRecord]
    ) -> tuple[Finding, ...]:
        """The findings, without a divergence that old batches know nothing of. That one is journaled."""
        if not any(found.code == "SY203" for found in findings):
            return tuple(findings)
        known = self._calm_at is not None and 0 <= reading.step - self._calm_at < ASK_AGAIN_AFTER
        if not known and not self._unharmed(reading, taped, recent):
            return tuple(findings)
        if not known:
            self._calm_at = reading.step
            detail = next(found.detail for found in findings if found.code == "SY203")
            self._journal.event("divergence_not_confirmed", step=reading.step, detail=f"{detail}; {_BUT}")
        return tuple(found for found in findings if found.code != "SY203")

    def calls_it_hard(self, reading: Reading, taped: Sequence[TapedBatch], recent: Sequence[StepRecord]) -> bool:
        """Whether a loss that is too high, with a gradient in line, is only that of a hard batch. That is journaled."""
        hard = self._unharmed(reading, taped, recent)
        if hard:
            self._journal.event(
                "loss_spike_not_confirmed", step=reading.step, detail=f"loss {reading.loss:.4g}; {_BUT}"
            )
        return hard

    def _unharmed(self, reading: Reading, taped: Sequence[TapedBatch], recent: Sequence[StepRecord]) -> bool:
        losses = {r.step: abs(r.loss) for r in recent if r.applied and math.isfinite(r.loss)}
        old = [t for t in taped if t.step < reading.step - RECENT_STEPS and t.step in losses and not t.changed()]
        if len(old) < ASKED:
            return False
        chosen = [old[0], old[len(old) // 2], old[-1]]
        entry = self._forward.take()
        try:
            now = [self._loss(t.fetch()) for t in chosen]
        except TheirFault:
            return False
        finally:
            self._forward.restore(entry)
        unharmed = [
            loss is not None
            and math.isfinite(loss)
            and abs(loss) <= max(RISEN * losses[t.step], FAR_BELOW * abs(reading.loss))
            for t, loss in zip(chosen, now, strict=True)
        ]
        return 2 * sum(unharmed) > len(unharmed)

    def _loss(self, batch: Any) -> float | None:
        terms = self._program.forward(batch)
        return None if terms is None else float(terms["loss"].detach())
