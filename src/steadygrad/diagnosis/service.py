"""What the engine asks of a diagnosis. Loaded at the first refused step, not before.

Every call is isolated: it ends with the training state as it was, and what goes wrong inside is an answer ("not
diagnosed: why"), or None, and never an exception of ours in the training loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..engine.build_parts import Parts
from ..engine.config import GuardConfig
from ..engine.state.earlier_steps import EarlierSteps
from ..engine.step.window import Window
from ..records import Diagnosis, Finding

logger = logging.getLogger("steadygrad")
T = TypeVar("T")


class DiagnosisService:
    """Diagnosis as one guard sees it. Every call ends with the training state as it was, bit for bit."""

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
        from .capsule.write_capsule import keep_capsule

        parts = self._parts
        self._within_memory(
            "the capsule was not written",
            lambda: keep_capsule(
                parts.program, parts.state, parts.log, window, findings, self.max_grad_norm, batch=self.capsule,
                max_bytes=self._capsule_bytes, weights_on=self._keeper(findings),
            ),
        )  # fmt: skip

    def _within_memory(self, without: str, work: Callable[[], T]) -> T | None:
        """Do this; out of memory, say what is missing and go on without it."""
        from .isolation.device_memory import forget, is_out_of_memory, release_memory

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
        from ..engine.recovery.preserved_attributes import preserved_attributes
        from ..engine.recovery.reruns.quiet import quiet
        from ..engine.recovery.reruns.reached_state import reached_state_kept
        from ..engine.recovery.reruns.sinks import HasEffect
        from ..records.errors import SteadyError
        from ..records.rerun_flag import rerun
        from .isolation.device_memory import forget, is_out_of_memory, release_memory
        from .isolation.resource_limits import OutOfTime, for_incident

        parts = self._parts
        try:
            kept = preserved_attributes((parts.program.model, *parts.program.beside))
            with for_incident(parts.log), rerun(), quiet(), kept, reached_state_kept(parts.program, parts.state):
                return work()
        except SteadyError:
            raise
        except HasEffect as effect:
            self._parts.log.journal.event("steps_not_run_again", detail=str(effect))
            return None
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
        if parts.consensus.size == 1 or parts.probe.sharded:
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
        past: EarlierSteps | None = None,
    ) -> Diagnosis:
        """Find out why the window was refused, while the weights are still those from before it."""
        from ..engine.recovery.reruns.reached_state import reached_state_kept
        from .isolation.resource_limits import for_incident, not_diagnosed, not_run_again
        from .replay.guard_step import examine_window

        parts = self._parts
        found: Diagnosis | None = None
        if parts.program.closed is not None:  # of several ranks
            return not_run_again(parts.log.incidents[-1].symptom, parts.program.closed)
        with for_incident(parts.log) as own, reached_state_kept(parts.program, parts.state):
            if parts.consensus.size > 1:
                found = self._examine_together(window, step, findings, others, depth)
            else:
                found = examine_window(
                    parts.program, parts.forward, parts.state, parts.log, window, step, findings, self._names,
                    self.max_grad_norm, others, depth=depth, past=past, preserve=parts.program.beside,
                )  # fmt: skip
        return found or not_diagnosed(parts.log.incidents[-1].symptom, own.stopped())

    def look_into(
        self,
        findings: Sequence[Finding],
        steps: Sequence[Sequence[Any]],
        step: int,
        *,
        depth: str,
        past: EarlierSteps | None,
    ) -> tuple[Diagnosis, tuple[Finding, ...]] | None:
        """Find out what is behind a silent problem that the sampled checks reported; None if it is not seen.

        Gives the findings that the diagnosis explains with it. `steps` are the micro-batches of a few good steps from
        just before; fewer than three show no pattern.
        """
        from .locate.confirm_finding import ENOUGH_STEPS, look_into
        from .replay.guard_step import GuardStep

        parts = self._parts
        if parts.consensus.size > 1 or len(steps) < ENOUGH_STEPS:
            return None
        window, entry = Window(), parts.forward.take()
        for number, batch in enumerate(steps[0]):
            window.add(batch, str(number), {}, entry)
        replayable = GuardStep(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom="silent", findings=tuple(findings), history=parts.log.recent, names=self._names,
            max_grad_norm=self.max_grad_norm, others=steps[1:], past=past,
        )  # fmt: skip
        try:
            return self._isolated(lambda: look_into(replayable, findings, depth=depth))
        finally:
            parts.forward.release(entry)

    def explain(self, window: Window, step: int, error: BaseException, *, depth: str) -> Diagnosis | None:
        """Find the NaN or the matrix behind an exception of the user's code in this window; None if there is none."""
        from .locate.crash_origin import explain_crash, is_explained
        from .replay.guard_step import GuardStep

        if not self._isolated(lambda: is_explained(error)):
            return None
        parts = self._parts
        replayable = GuardStep(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom="nan_loss", findings=(), history=parts.log.recent, names=self._names,
            max_grad_norm=self.max_grad_norm,
        )  # fmt: skip
        return self._isolated(lambda: explain_crash(replayable, error, depth=depth))

    def _examine_together(
        self, window: Window, step: int, findings: tuple[Finding, ...], others: Sequence[Sequence[Any]], depth: str
    ) -> Diagnosis:
        from .distributed.joint_examination import examine_together
        from .replay.guard_step import GuardStep

        parts = self._parts
        replayable = GuardStep(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=step,
            symptom=parts.log.incidents[-1].symptom, findings=findings, history=parts.log.recent,
            names=self._names, max_grad_norm=self.max_grad_norm, others=others,
        )  # fmt: skip
        leader = findings[0].rank if findings else 0
        return examine_together(replayable, parts.program, parts.state, parts.consensus, leader=leader, depth=depth)
