"""Memory faults and miscomputed gradients: seen before the update, undone, and reported.

A weight or a moment that changed since the last update although nothing wrote it gets its bits back, and the step that
was computed with it is run again. A gradient that is far larger than it ever was is computed a second time, from the
same state and random numbers: what comes out differently was no gradient of the batch but a fault of the machine. What
comes out the same is applied, as it would have been: the bits of a healthy run do not change.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...detect.observations.observed_run import NotAsked, ObservedRun
from ...detect.observations.step_observation import StepObservation
from ...detect.patterns import step_not_repeatable, weight_changed_between_steps
from ...detect.refusal_rule import must_refuse
from ...records import Cause, Diagnosis, Finding, Origin, Reading, Remedy, Severity, Trial
from ..record.run_log import RunLog
from ..state.rng import put_rng, take_rng
from ..state.state_shadow import StateFault, StateShadow
from ..step.step_row import Row
from ..step.window import Window
from .self_check import SelfCheck, Verdict

if TYPE_CHECKING:
    from ..engine import Step
    from ..owned_loop import OwnedLoop

TIMES, SEEN = 64.0, 16
"""A gradient's norm so many times the largest of the last steps is computed again, once so many have been seen."""
SHARE = 0.01
"""Of all steps at most so many are computed twice."""
_NOISE = 0.01
"""Two computations whose norms differ by less are taken for the same: kernels may add up in another order."""
_CAUSE = Cause(code="DX404", slug="transient_fault")
_RULE, _TWICE = weight_changed_between_steps.RULE, step_not_repeatable.RULE


def undo_faults(shadow: StateShadow, log: RunLog, step: int) -> Finding | None:
    """Restore what a memory fault changed since the last update, and report it; None where there is nothing."""
    faults = shadow.faults()
    if not faults:
        return None
    for fault in faults:
        fault.undo()
    shadow.keep()
    found = _finding(faults[0], step, log.rank)
    remedy = Remedy(code="RX152", slug="restore_weight", change="restore the bits it had", safety="exact")
    trial = Trial(remedy=remedy, finite=True, verified=True, verdict="its bits after the last update are restored")
    log.enter_silent(
        step,
        (found,),
        Diagnosis(
            symptom="silent", phase="state", cause=_CAUSE, because=found.detail, confidence=0.95, trials=(trial,),
            origin=Origin(phase="state", module=_module_of(found.subject), tensor=found.subject),
            notes=("no operation wrote to it since the last update; if it happens again, test the memory",),
        ),
    )  # fmt: skip
    log.announce()
    return found


def _module_of(name: str) -> str | None:
    """The module of a weight, from its name in the state of a run; None for what belongs to an optimizer."""
    kind, _, path = name.partition(" ")
    return path.rpartition(".")[0] if kind == "parameter" else None


def _finding(fault: StateFault, step: int, rank: int) -> Finding:
    change, device = fault.change, str(fault.tensor.device)
    return Finding(
        code=_RULE.code, slug=_RULE.slug, severity=Severity.WARNING, step=step, subject=fault.name, rank=rank,
        detail=f"{fault} without an update ({device}, rank {rank}); its exact bits are restored",
        evidence={"tensor": fault.name, "places": list(change.places), "old": list(change.old),
                  "new": list(change.new), "device": device},
    )  # fmt: skip


class GradientLevels:
    """The largest norm of each gradient in the last steps. Host only; a comparison of each on most steps."""

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._recent: deque[Sequence[float]] = deque(maxlen=4 * SEEN)
        self._limits: list[float] = []
        self._on_device: Tensor | None = None
        self._count = 0

    def far_above(self, reading: Reading) -> bool:
        """Whether a gradient is far above what it was. A NaN is above nothing."""
        return reading.names is self._names and any(map(operator.gt, reading.norms, self._limits))

    def limits(self, names: Sequence[str], device: torch.device) -> Tensor | None:
        """What `far_above` compares with, on the device; None if there is nothing yet. Does not sync."""
        if names is not self._names or not self._limits:
            return None
        if self._on_device is None:
            most = torch.tensor(self._limits, pin_memory=device.type == "cuda")
            self._on_device = most.to(device, non_blocking=True)
        return self._on_device

    def remember(self, reading: Reading) -> None:
        """A step that was applied."""
        if reading.names is not self._names:
            self._names, self._limits, self._count, self._on_device = reading.names, [], 0, None
            self._recent.clear()
        if math.isfinite(reading.grad_norm) and reading.norms:
            self._recent.append(reading.norms)
            self._count += 1
            if self._count % SEEN == 0:
                # One that had no gradient so far has no level yet.
                self._limits = [TIMES * max(each) or math.inf for each in zip(*self._recent, strict=True)]
                self._on_device = None


class SilentFaults:
    """Asked before each update of a loop whose steps can be run again. One per guard."""

    def __init__(self, loop: OwnedLoop) -> None:
        self._loop = loop
        self._levels = GradientLevels()
        self._first: Reading | None = None
        self._twice, self._checking = 0, False
        self.self_check = SelfCheck(loop)
        loop.update_check.failed = lambda fault: loop.barrier.note("silent_faults", fault)

    def _can_run_again(self, step: Step) -> bool:
        """Whether forward and backward of all its micro-batches can be run again to the same gradients."""
        window = self._loop.recovery.as_fed(step.number, step.window)
        return window.can_run_again and not window.left_over

    def handled(self, step: Step, reading: Reading) -> bool:
        """Whether a fault was undone, or a step is doubtful: then it has been run again and is settled."""
        loop = self._loop
        shadow, again = loop.update_check.shadow, False
        try:  # not `with loop.barrier`: this is every step's path
            found = undo_faults(shadow, loop.log, step.number) if shadow is not None else None
            if found is not None and self._can_run_again(step):
                again = True
            else:
                again = self._doubtful(step, reading)
        except Exception as fault:
            loop.barrier.note("silent_faults", fault)
        if again:
            self._run_again(step)
        return again

    # -- where the device decides and the host reads later

    def flag(self, row: Row) -> Tensor | None:
        """On the device, 1.0 where the coming update must wait for `handled_late`. Does not sync."""
        nothing: Tensor | None = None
        shadow, device = self._loop.update_check.shadow, self._loop.program.device
        if shadow is None or not self._loop.config.policy.acts:
            return nothing
        with self._loop.barrier("silent_faults", nothing) as answer:
            flag = shadow.flag(device)
            limits = self._levels.limits(row.layout.names, device) if self._may_doubt() else None
            if limits is not None:
                flag.logical_or_((row.values[: len(row.layout.names)] > limits).any())
            answer.value = flag
        return answer.value

    def made(self, refused: Tensor) -> None:
        """An update was made under this flag. Does not sync."""
        check = self._loop.update_check
        if check.shadow is not None:
            with self._loop.barrier("silent_faults", None):
                check.shadow.keep_unless(refused)

    def handled_late(self, step: Step, reading: Reading) -> bool:
        """The device has refused a step: whether because something changed or only its norm overflowed, and then it has
        been run again, with what came behind it. What the program wrote is in it then; what a fault did is undone."""
        loop = self._loop
        found: Finding | None = None
        if loop.update_check.shadow is not None:
            with loop.barrier("silent_faults", found) as answer:
                answer.value = undo_faults(loop.update_check.shadow, loop.log, step.number)
            found = answer.value
        if found is None:
            refuses = must_refuse(reading)
            if self._levels.far_above(reading) and self._may_doubt() and self._can_run_again(step):
                self._first, self._twice, self._checking = reading, self._twice + 1, False
            elif refuses and not self._only_norm_overflows(step, reading):
                return False
            elif not refuses and loop.update_check.shadow is None:
                return False  # nothing was compared on the device, so nothing there can have changed
        if not step.window.can_run_again:
            return False
        self._run_again(step)
        return True

    def _only_norm_overflows(self, step: Step, reading: Reading) -> bool:
        """The host applies such an update: see `look_at_infinite_norm`."""
        if self._loop.parts.updater.clips or not self._can_run_again(step):
            return False
        return self._loop.recovery.second_look.only_norm_overflows(reading, step.window)

    def _doubtful(self, step: Step, reading: Reading) -> bool:
        """Whether the step is to be computed again: as a check, because of a gradient, or after two results."""
        loop, first = self._loop, self._first
        if loop.config.self_check is None:
            return False
        self._first = None
        if step.attempt or loop.config.outside:
            return first is not None and self._compare(step, first, reading)
        self._checking = self.self_check.due(step.number)
        far = self._levels.far_above(reading)
        if not (far or self._checking):
            return False
        if not self._can_run_again(step) or not (self._checking or self._may_doubt()):
            return False
        self._first, self._twice = reading, self._twice + (not self._checking)
        return True

    def _may_doubt(self) -> bool:
        """A step of the user's is run twice only where that was asked for."""
        return self._loop.config.self_check is not None and self._twice <= 1 + SHARE * self._loop.step

    def applied(self, reading: Reading) -> None:
        """An update was made: what its gradients were is usual from now on. Asked where steps are computed twice."""
        self._levels.remember(reading)

    def _run_again(self, step: Step) -> None:
        """From the state and the random numbers it began with; what the program drew since stays drawn. If the step is
        refused after all, the refusal restores them."""
        loop, entry = self._loop, step.window.entry
        assert entry is not None
        loop.parts.checker.after_refusal()
        rng = take_rng()
        loop.recovery.second_look.put_back(step.window)
        loop.program.forget()
        loop.window = Window()
        loop.forward.forget_since(entry.place)
        loop.run_again(step.window.fed, step.outcome, loop.recovery.rngs_of(step.window.fed))
        behind = list(step.behind)
        # Behind a step that is refused after all, the random numbers are those of a run that never saw it.
        loop.run_again(behind, step.next_outcome, loop.recovery.rngs_of(behind) if step.outcome.applied else ())
        last = step.outcome if not step.behind else step.next_outcome
        if last is not None and last.applied and step.outcome.applied:
            put_rng(rng)
        if loop.config.outside:  # its schedule has advanced here, so that the trainer must not advance it again
            step.outcome.applied_flag = False

    def _compare(self, step: Step, first: Reading, second: Reading) -> bool:
        """The same step, computed twice: report it where the two differ. Whether it is to be computed once more."""
        pairs = zip(first.norms, second.norms, strict=True)
        observed = StepObservation(step=second.step, twice=dict(zip(second.names, pairs, strict=True)))
        noise = self.self_check.noise if self._checking else _NOISE
        suspicion = step_not_repeatable.suspect(ObservedRun(NotAsked(), [observed]), noise=noise)
        if suspicion is None:
            return False
        log, name = self._loop.log, suspicion.names[0]
        one, two = observed.twice[name]
        because = f"it was the machine ({self._loop.program.device}, rank {log.rank})"
        verdict = self.self_check.explain(step) if self._checking else Verdict("machine", because)
        detail = (
            f"the gradient of {name} had the norm {one:.6g}, and {two:.6g} when it was computed again from the same "
            f"state: {verdict.because}; the step is repeated and training goes on"
        )
        found = Finding(
            code=_TWICE.code, slug=_TWICE.slug, severity=Severity.WARNING, step=second.step, subject=name,
            rank=log.rank, detail=detail,
            evidence={"first": one, "second": two, "verdict": verdict.kind, "op": verdict.op,
                      "device": str(self._loop.program.device)},
        )  # fmt: skip
        diagnosis = Diagnosis(
            symptom="silent", phase="backward", cause=_CAUSE if verdict.kind == "machine" else None, because=detail,
            origin=Origin(phase="backward", op=verdict.op) if verdict.op else None, confidence=0.9,
            notes=("if it happens again, test the machine",) if verdict.kind == "machine" else (),
        )  # fmt: skip
        log.enter_silent(second.step, (found,), diagnosis)
        log.announce()
        return self._checking
