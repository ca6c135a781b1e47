"""What the engine asks of a diagnosis. Loaded at the first refused step, not before.

Every call is isolated: it ends with the training state as it was, and what goes wrong inside is an answer ("not
diagnosed: why"), or None, and never an exception of ours in the training loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .config import GuardConfig
from .engine.flight import Window
from .engine.parts import Parts
from .engine.past import Past
from .records import Diagnosis, Finding

logger = logging.getLogger("steadygrad")
T = TypeVar("T")


class Consult:
    """Diagnosis as one guard sees it. Every call ends with the training state as it was, bit for bit."""

    def __init__(self, parts: Parts, config: GuardConfig) -> None:
        self.preserve: tuple[Any, ...] = ()
        """Objects of the user's besides the model (a trainer, a module of a framework) whose lists, dicts and counters
        a replay may change: they are as before after every call."""
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
        self._within_memory(
            "the capsule was not written",
            lambda: keep_capsule(
                parts.program, parts.state, parts.books, window, findings, self.max_grad_norm, batch=self.capsule,
                max_bytes=self._capsule_bytes, weights_on=self._keeper(findings),
            ),
        )  # fmt: skip

    def _within_memory(self, without: str, work: Callable[[], T]) -> T | None:
        """Do this; out of memory, say what is missing and go on without it."""
        from .diagnosis.isolation import forget, is_out_of_memory, release_memory

        try:
            return work()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            forget(error)
        release_memory()
        logger.warning("%s: out of memory.", without)
        return None

    def _isolated(self, work: Callable[[], T]) -> T | None:
        """Do this between two steps; None where it fails, which is logged for whoever looks for it."""
        from .diagnosis.isolation import Limits, OutOfTime, forget, is_out_of_memory, limited, release_memory
        from .diagnosis.preserved import preserved_attributes
        from .errors import SteadyError
        from .records.reruns import rerun

        try:
            with rerun(), limited(Limits()), preserved_attributes((self._parts.program.model, *self.preserve)):
                return work()
        except SteadyError:
            raise
        except (Exception, OutOfTime) as error:
            logger.debug("not diagnosed", exc_info=error)
            short = is_out_of_memory(error)
            forget(error)
        if short:
            release_memory()
        return None

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
            self.max_grad_norm, others, depth=depth, past=past, preserve=self.preserve,
        )  # fmt: skip

    def look_into(
        self, findings: Sequence[Finding], steps: Sequence[Sequence[Any]], step: int, *, depth: str, past: Past | None
    ) -> tuple[Diagnosis, tuple[Finding, ...]] | None:
        """Find out what is behind a silent problem that the sampled checks reported; None if it is not seen.

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
            max_grad_norm=self.max_grad_norm, others=steps[1:], past=past,
        )  # fmt: skip
        try:
            return self._isolated(lambda: look_into(patient, findings, depth=depth))
        finally:
            parts.forward.release(entry)

    def explain(self, window: Window, step: int, error: BaseException, *, depth: str) -> Diagnosis | None:
        """Find the NaN behind an exception of the user's code in this window; None if there is none."""
        from .diagnosis.bedside import GuardPatient
        from .diagnosis.crash import explain_crash, near_a_nan

        if not self._isolated(lambda: near_a_nan(error)):
            return None
        parts = self._parts
        patient = GuardPatient(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom="nan_loss", findings=(), history=parts.books.recent, names=self._names,
            max_grad_norm=self.max_grad_norm,
        )  # fmt: skip
        return self._isolated(lambda: explain_crash(patient, error, depth=depth))

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
