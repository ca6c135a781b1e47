"""What the engine asks of the clinic, and when the clinic is worth loading: at the first refused step, not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .config import GuardConfig
from .engine.flight import Window
from .engine.parts import Parts
from .engine.past import Past
from .records import Diagnosis, Finding


class Consult:
    """The clinic as one guard sees it. Both calls end with the training state as they found it, bit for bit."""

    def __init__(self, parts: Parts, config: GuardConfig) -> None:
        self._parts = parts
        self.max_grad_norm = config.max_grad_norm
        self._capsule_bytes = config.capsule_bytes
        self.capsule = config.capsule

    @property
    def _names(self) -> dict[int, str]:
        guarded = self._parts.parameters
        return {id(p): name for name, p in zip(guarded.names, guarded.parameters, strict=True)}

    def keep_capsule(self, window: Window, findings: Sequence[Finding]) -> None:
        """Write what `steady replay` needs of the newest incident."""
        from .diagnosis.keeping import keep_capsule

        parts = self._parts
        keep_capsule(
            parts.program, parts.state, parts.books, window, findings, self.max_grad_norm, batch=self.capsule,
            max_bytes=self._capsule_bytes, weights_on=self._keeper(findings),
        )  # fmt: skip

    def _keeper(self, findings: Sequence[Finding]) -> int | None:
        """Of ranks that all have the same weights, the one where it began keeps them; of shards each keeps its own."""
        parts = self._parts
        if parts.council.size == 1 or parts.probe.sharded:
            return None
        return findings[0].rank if findings else 0

    def examine(
        self,
        window: Window,
        step: int,
        findings: tuple[Finding, ...],
        others: Sequence[Sequence[Any]],
        *,
        depth: str,
        past: Past | None = None,
    ) -> Diagnosis:
        """Find out why the window was refused, while the weights are still those from before it."""
        from .diagnosis.bedside import examine_window

        parts = self._parts
        if parts.council.size > 1:
            return self._examine_together(window, step, findings, others, depth)
        return examine_window(
            parts.program, parts.forward, parts.state, parts.books, window, step, findings, self._names,
            self.max_grad_norm, others, depth=depth, past=past,
        )  # fmt: skip

    def look_into(
        self, findings: Sequence[Finding], steps: Sequence[Sequence[Any]], step: int, *, depth: str
    ) -> tuple[Diagnosis, tuple[Finding, ...]] | None:
        """Find out what is behind silent trouble that the vitals told of, between two steps; None if it is not seen.

        Gives the findings that the diagnosis explains with it. `steps` are the micro-batches of a few good steps from
        just before; fewer than three show no pattern.
        """
        from .diagnosis.bedside import GuardPatient
        from .diagnosis.confirm import ENOUGH_STEPS, look_into

        parts = self._parts
        if parts.council.size > 1 or len(steps) < ENOUGH_STEPS:
            return None
        window, entry = Window(), parts.forward.take()
        for number, batch in enumerate(steps[0]):
            window.add(batch, str(number), {}, entry)
        patient = GuardPatient(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom="silent", findings=tuple(findings), history=parts.books.recent, names=self._names,
            max_grad_norm=self.max_grad_norm, others=steps[1:],
        )  # fmt: skip
        try:
            return look_into(patient, findings, depth=depth)
        finally:
            parts.forward.release(entry)

    def explain(self, window: Window, step: int, error: BaseException, *, depth: str) -> Diagnosis | None:
        """Find the NaN behind an exception of the user's code in this window; None if there is none."""
        from .diagnosis.bedside import GuardPatient
        from .diagnosis.crash import explain_crash, near_a_nan

        if not near_a_nan(error):
            return None
        parts = self._parts
        patient = GuardPatient(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom="nan_loss", findings=(), history=parts.books.recent, names=self._names,
            max_grad_norm=self.max_grad_norm,
        )  # fmt: skip
        return explain_crash(patient, error, depth=depth)

    def _examine_together(
        self, window: Window, step: int, findings: tuple[Finding, ...], others: Sequence[Sequence[Any]], depth: str
    ) -> Diagnosis:
        from .diagnosis.bedside import GuardPatient
        from .diagnosis.lockstep import examine_together

        parts = self._parts
        patient = GuardPatient(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom=parts.books.incidents[-1].symptom, findings=findings, history=parts.books.recent,
            names=self._names, max_grad_norm=self.max_grad_norm, others=others,
        )  # fmt: skip
        leader = findings[0].rank if findings else 0
        return examine_together(patient, parts.program, parts.state, parts.council, leader=leader, depth=depth)
