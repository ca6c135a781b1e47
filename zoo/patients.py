"""A case of the zoo as a replayable step, and the plain loop that drives it.

The verbs are the reference loop of `protocol.train`, taken apart: what the case's owner does between steps, forward,
backward, and everything after it. Nothing here reads what the case knows about itself (its truth, its repairs).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from steadygrad.detect.observations.observed_run import ObservedRun, Suspicion
from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.replay.guard_step import select_rows
from steadygrad.diagnosis.replay.replay_observation import ReplayObservation, complete
from steadygrad.diagnosis.replay.replay_step import ReplayChange, hides_a_nan, replay
from steadygrad.diagnosis.replay.replayable import StepFacts
from steadygrad.diagnosis.trace.parameters_used import parameters_read
from steadygrad.records import Diagnosis, StepRecord

from . import protocol
from .snapshots import Snapshot
from .trainers import needs_trainer, plain_case, watched_incidents

# Past this many saved values only the latest moments are kept.
SNAPSHOT_BUDGET = 60_000_000
# So many batches in a row may a loop's own policy refuse before it is standing still.
HANDLED_IN_A_ROW = 3


def _take(batch: Any, rows: Sequence[int]) -> Any:
    """The protocol's way to choose rows; of batches it cannot open, that of a diagnosis."""
    opened = any(True for _ in protocol.tensors(batch))
    return protocol.take(batch, rows) if opened else select_rows(batch, rows)


class CasePatient:
    """One batch of one case, replayable. `index` counts batches as the protocol does."""

    def __init__(
        self,
        case: Any,
        index: int,
        snapshots: Mapping[int, Snapshot],
        facts: StepFacts,
        prepared: dict[int, Snapshot] | None = None,
    ) -> None:
        self.case, self.index, self.facts = case, index, facts
        self._snapshots = snapshots
        self._prepared = prepared if prepared is not None else {}
        self._now = index
        self._skip = False

    @property
    def model(self) -> torch.nn.Module:
        return self.case.model

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return [] if self.case.optimizer is None else [self.case.optimizer]

    @property
    def batches(self) -> Sequence[Any]:
        return [self.case.batches[self.index]]

    def restore(self) -> None:
        self._snapshots[self.index].restore(self.case)
        self._now, self._skip = self.index, False

    def prepare(self) -> None:
        self._skip = False
        self.model.train()
        if self.case.before_step:
            self.case.before_step(self.case, self._now)
            # A hook may do its work only once (load a checkpoint, say): what it left the first time is restored.
            if self._now == self.index and self.index in self._prepared:
                self._prepared[self.index].restore(self.case)

    def following(self, ahead: int) -> Sequence[Any] | None:
        """The steps that come next; after the last step of a case earlier batches stand in for them, as in a guard."""
        at = self.index + ahead
        if self.index == len(self.case.batches) - 1:
            at = self.index - ahead
        return [self.case.batches[at]] if 0 <= at < len(self.case.batches) else None

    def prepare_following(self, ahead: int) -> None:
        self._now = self.index + ahead
        self.prepare()

    def forward(self, batch: Any) -> Mapping[str, torch.Tensor]:
        case = self.case
        device = getattr(case, "device", "cpu")
        with torch.autocast(device, dtype=case.autocast) if case.autocast else contextlib.nullcontext():
            loss = case.loss_fn(case.model, batch)
        return dict(loss) if isinstance(loss, Mapping) else {"loss": loss}

    def backward(self, terms: Mapping[str, torch.Tensor]) -> None:
        case = self.case
        loss = terms["loss"] if "loss" in terms else next(iter(terms.values()))
        if case.skip_nonfinite == "loss" and not math.isfinite(float(loss.detach())):
            self._skip = True
            return
        scaled = loss / case.accumulation
        if case.static_scale:
            scaled = scaled * case.static_scale
        if case.scaler is not None:
            scaled = case.scaler.scale(scaled)
        scaled.backward()

    @property
    def loss_scale(self) -> float | None:
        scaler = self.case.scaler
        return self.case.static_scale or (scaler.get_scale() if scaler is not None else None)

    def commit(self) -> None:
        case, optimizer = self.case, self.case.optimizer
        if case.after_backward and not self._skip:
            case.after_backward(case, self._now)
        if optimizer is None:
            return
        if self._skip:
            if case.zero_grad_on_skip:
                optimizer.zero_grad()
            return
        if (self._now + 1) % case.accumulation:
            return
        if case.static_scale:
            for parameter in case.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(case.static_scale)
        if case.scaler is not None and not case.clip_before_unscale:
            case.scaler.unscale_(optimizer)
        bad = not protocol.finite(protocol.dense_grads(case.model))
        if bad and case.skip_nonfinite == "grad":
            if case.zero_grad_on_skip:
                optimizer.zero_grad()
            if case.scaler is not None:
                case.scaler.update()
            return
        if case.zero_nan_grads:
            for parameter in case.model.parameters():
                if parameter.grad is not None:
                    torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)
        if case.clip_norm:
            torch.nn.utils.clip_grad_norm_(case.model.parameters(), case.clip_norm)
        if case.scaler is not None:
            case.scaler.step(optimizer)
            case.scaler.update()
        else:
            optimizer.step()
        if case.scheduler is not None:
            case.scheduler.step()
        optimizer.zero_grad()

    @contextlib.contextmanager
    def examining(self) -> Iterator[None]:
        now, index = Snapshot(self.case), self._now
        try:
            yield
        finally:
            now.restore(self.case)
            self._now = index


@dataclass(slots=True)
class Sighting:
    """What a run of a case came to: the first suspicion, if any, and its diagnosis."""

    suspicion: Suspicion | None = None
    diagnosis: Diagnosis | None = None


def run_case(case: Any, *, depth: str = "full") -> Sighting:
    """Drive the case's loop, look at every step, and diagnose the first trouble. Silence means health.

    A case that only a trainer can drive is taken apart into a plain loop of the same arithmetic first.
    """
    if needs_trainer(case):
        plain = plain_case(case)
        if plain is None:
            return _told_by_the_watch(case)
        case = plain
    return _Run(case).go(depth=depth)


def _told_by_the_watch(case: Any) -> Sighting:
    """The first incident of a trainer that cannot be taken apart."""
    for incident in watched_incidents(case):
        step = incident.first_step * case.accumulation
        suspicion = Suspicion(symptom=incident.symptom, step=step, kind="non_finite", detail=incident.headline)
        told = incident.diagnosis or Diagnosis(symptom=incident.symptom, phase="none", because=incident.headline)
        return Sighting(suspicion, told)
    return Sighting()


class _Run:
    def __init__(self, case: Any) -> None:
        self.case = case
        self.snapshots: dict[int, Snapshot] = {}
        self.prepared: dict[int, Snapshot] = {}
        self.history: list[StepRecord] = []
        size = sum(p.numel() for p in case.model.parameters()) * 4
        self.keep = max(3, SNAPSHOT_BUDGET // max(size, 1))

    def replayable(self, index: int, symptom: str | None = None) -> CasePatient:
        case = self.case
        scale = case.static_scale or (self.snapshots[index].loss_scale if case.scaler is not None else None)

        def earlier(back: int) -> CasePatient | None:
            return self.replayable(index - back) if index - back in self.snapshots else None

        facts = StepFacts(
            step=index,
            symptom=symptom,
            history=tuple(record for record in self.history if record.step <= index),
            autocast=case.autocast,
            loss_scale=scale,
            dynamic_scale=case.scaler is not None,
            max_grad_norm=case.clip_norm,
            accumulation=case.accumulation,
            select_rows=case.select_rows or _take,
            owners=frozenset({__file__, protocol.__file__}),
            earlier=earlier,
        )
        return CasePatient(case, index, self.snapshots, facts, self.prepared)

    def go(self, *, depth: str) -> Sighting:
        answers = _Answers(self)
        run = ObservedRun(answers)
        suspicion: Suspicion | None = None
        latent: Suspicion | None = None
        handled: list[Suspicion] = []
        for index in range(len(self.case.batches)):
            self.snapshots[index] = Snapshot(self.case)
            self.snapshots.pop(index - self.keep, None)
            replayable = self.replayable(index)
            seen = replay(replayable, restore=False, prepare=self._first_preparation(replayable))
            self.history.append(_record(index, seen, self.case))
            answers.replayable = replayable
            run.add(complete(seen, replayable, index, run.last if run.steps else None))
            suspicion = run.suspect()
            if suspicion is not None and self._refused(seen, index) and len(handled) < HANDLED_IN_A_ROW:
                # The loop's own policy refused the batch and nothing was harmed: told only if it goes on and on.
                handled.append(suspicion)
                suspicion = None
                continue
            if suspicion is not None and _only_lurks(seen):
                # Reported at once; but what it does can only be seen in the step that reads it.
                latent, suspicion = latent or suspicion, None
                continue
            if suspicion is not None:
                suspicion = handled[0] if handled and self._refused(seen, index) else suspicion
                break
            handled.clear()
        suspicion = suspicion or (None if latent else run.conclude())
        if suspicion is None and latent is None:
            return Sighting()
        from_start = latent is not None and latent.step == 0
        # What was not filled when the run began is reported when something reads it; what went bad on the way, at once.
        told, seen_at = (suspicion if from_start else None) or latent or suspicion, suspicion or latent
        assert told is not None
        assert seen_at is not None
        at = seen_at.step if seen_at.step in self.snapshots else max(self.snapshots)
        replayable = self.replayable(at, seen_at.symptom)
        try:
            return Sighting(told, diagnose(replayable, depth=depth, suspicion=seen_at))
        except Exception as error:  # an alarm without an explanation is still an alarm, as behind a guard
            because = f"the diagnosis failed: {type(error).__name__}: {error}"[:200]
            return Sighting(told, Diagnosis(symptom=seen_at.symptom, phase="none", because=because))

    def _first_preparation(self, replayable: CasePatient) -> Callable[[], None]:
        def prepare() -> None:
            replayable.prepare()
            if self.case.before_step:
                self.prepared[replayable.index] = Snapshot(self.case)
                self.prepared.pop(replayable.index - self.keep, None)

        return prepare

    def _refused(self, seen: ReplayObservation, index: int) -> bool:
        """Whether the loop itself took no step for a bad batch, and left no bad state behind."""
        if self.case.skip_nonfinite is None or seen.stepped or seen.bad_after:
            return False
        return not seen.bad_before and (index + 1) % self.case.accumulation == 0


class _Answers:
    """What the owner of the steps can be asked about the last one; each answer is a replay."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.replayable: Any = None

    def parameters_read(self) -> frozenset[str]:
        with self.replayable.examining():
            return parameters_read(self.replayable)

    def hides_a_nan(self) -> bool:
        return hides_a_nan(self.replayable)

    def loss_now(self, step: int) -> float | None:
        """The loss of an earlier batch with everything as it is now."""
        batches = [self.run.case.batches[step]]
        with self.replayable.examining():
            try:
                seen = replay(self.replayable, restore=False, prepare=lambda: None, until="forward", batches=batches)
            except (RuntimeError, ValueError, IndexError, TypeError, KeyError):
                return None
        return seen.loss

    def overflow_is_the_scalers(self) -> bool:
        """Whether the gradient is finite once the loss scale is taken away: then a dynamic scaler will see to it."""

        class WithoutScale(ReplayChange):
            def prepared(self, replayable: Any) -> None:
                # What an earlier micro-batch of the window left behind was judged when it came.
                for parameter in replayable.model.parameters():
                    parameter.grad = None

            def terms(self, terms: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
                return {name: term / scale for name, term in terms.items()}

        scale = self.replayable.facts.loss_scale or 1.0
        with self.replayable.examining():
            return not replay(self.replayable, change=WithoutScale(), until="backward").bad_gradients


def _only_lurks(seen: ReplayObservation) -> bool:
    """Whether a weight or buffer was bad before the step and nothing in the step has read it yet."""
    finite = seen.loss_finite and not seen.bad_gradients and not seen.bad_entering
    return finite and bool(seen.bad_before) and set(seen.bad_after) <= set(seen.bad_before)


def _record(index: int, seen: ReplayObservation, case: Any) -> StepRecord:
    rate = max((group["lr"] for group in case.optimizer.param_groups), default=0.0) if case.optimizer else 0.0
    return StepRecord(
        run="zoo", step=index, loss=seen.loss, grad_norm=seen.grad_norm, lr=float(rate), applied=seen.stepped
    )


def settings_of(case: Any) -> contextlib.AbstractContextManager[Any]:
    """The process-wide switches that a case runs under (TF32, an attention backend ...); most have none."""
    settings = getattr(case, "settings", None)
    return settings() if settings is not None else contextlib.nullcontext()


def load_case(path: str, make: Callable[..., Any] | None = None) -> Any:
    """The case module at `path`, with this package's protocol and blocks on the path behind its own."""
    import sys
    from pathlib import Path

    home = str(Path(__file__).parent)
    if home not in sys.path:
        sys.path.append(home)
    return protocol.load(path)
