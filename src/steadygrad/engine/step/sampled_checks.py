"""Runs the sampled checks around the step: vitals on a schedule, and the audit of what a model changes by itself."""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.graph.graph_findings import num_ranks
from ...detect.graph.live_graph import LiveGraph
from ...detect.loop.loop_recorder import LoopRecorder
from ...detect.sampled import StepSampler
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...records import Finding, Reading, Severity
from ...records.diagnosis import silent_diagnosis
from ..early_checks.collapse import CollapseWatch
from ..early_checks.first_batch import FirstBatch
from ..fault_barrier import FaultBarrier
from ..record.run_log import RunLog
from ..state.forward_state import ForwardState

EARLY_FORWARDS = 3
AUDIT_EVERY = 100
_PATIENCE = 100
"""Steps that a provisional finding waits: then it is told if the loss has not come back to where it began."""
_LAST = 8


class SampledChecker:
    """Costs a few comparisons on steps where nothing is due. A fault in the vitals switches them off."""

    def __init__(
        self, log: RunLog, barrier: FaultBarrier, model: nn.Module, optimizers: Sequence[Optimizer], *,
        sampled: bool = True, probed: bool = True, copies: Sequence[nn.Module] = (),
        graph: LiveGraph | None = None, own_loop: bool = False,
    ) -> None:  # fmt: skip
        """With `sampled` False the loop and the first batches are looked at: others train the same model. With
        `probed` False the loop alone. `copies` are other modules that hold parameters of the model, `graph` is what has
        looked at the first loss already. `own_loop`: nothing of the program's runs between backward and update."""
        self._log = log
        self._barrier = barrier
        self._vitals: StepSampler | None = None
        self._model = weakref.ref(model)
        self.sampling: int | None = None
        """The step under way, where it is sampled."""
        self.forwards = 0
        """The first forwards, counted and not read off the step: a resumed run begins anew."""
        self._waiting: list[int] = []
        self.expects = True
        """Whether `after_step` has something to do: a sampled step or a provisional finding waits for it."""
        self.suspects: list[Finding] = []
        """Warnings that no one has looked into yet."""
        self._provisional: list[Finding] = []
        self._entered: set[tuple[str, str]] = set()
        self._first_loss: float | None = None
        self.idle = range(0)
        """Steps before whose forwards there is nothing to do."""
        self.recorder: LoopRecorder | None = None
        """Keeps the record of what the loop calls."""
        with barrier("vitals", None):
            self._vitals = StepSampler(model, optimizers, log.policy) if sampled else None
        self._first_batch = FirstBatch(model, lambda fault: barrier.note("first_batch", fault))
        self._collapse = CollapseWatch(model, lambda fault: barrier.note("collapse", fault))
        # A device is neither waited for nor asked for memory: there `sg.selftest` looks at a batch, before training.
        on_host = all(parameter.device.type == "cpu" for parameter in model.parameters())
        if not probed or not on_host:
            self._first_batch.close()
            self._collapse.close()
        with barrier("loop_record", None):
            self.recorder = LoopRecorder(
                model,
                optimizers,
                failed=lambda fault: barrier.note("loop_record", fault),
                on_news=self._expect,
                values=on_host,
                copies=copies,
                graph=graph,
                own_loop=own_loop,
            )

    def model(self) -> nn.Module | None:
        """The model, as long as it is there."""
        return self._model()

    def trains(self, parameters: Sequence[Tensor]) -> bool:
        """Whether some of the groups that never had a rate hold these parameters."""
        return self.recorder is not None and self.recorder.holds_idle(parameters)

    @property
    def samples(self) -> bool:
        """Whether the weights are sampled."""
        return self._vitals is not None

    def inspect_setup(self) -> None:
        """Look once at model and optimizers before the first step."""
        with self._barrier("vitals", None):
            if self._vitals is not None:
                self._tell(self._vitals.inspect_setup())

    def before_forward(self, step: int) -> None:
        """Attach what measures activations, on a step that is due. Does not sync."""
        if self.recorder is not None:
            self.recorder.before_forward(step)
        if not self._first_batch.done:
            self._first_batch.before_forward(step)
        if not self._collapse.done:
            with self._barrier("collapse", None):
                self._collapse.before_forward(step)
            self.expects |= self._collapse.listening
        if self._vitals is None or self.sampling is not None or not self._vitals.due(step):
            if self._first_batch.done and self._collapse.done:
                self.idle = range(step + 1, self._next_look(step))
            return
        with self._vitals_barrier():
            self.sampling, self.expects = step, True
            self._vitals.before_forward()

    def _next_look(self, step: int) -> int:
        """The first step after this one at which the recorder or the vitals have something to do."""
        looks = [self.recorder.next_look(step)] if self.recorder is not None else []
        looks += [self._vitals.next_due(step)] if self._vitals is not None else []
        return min(looks, default=step + AUDIT_EVERY)

    def after_forward(self, step: int, forward: ForwardState) -> None:
        """The audit, where due: at once after a forward, so that what it moved is known before the next one.

        Compares values (a host read) on the first steps only.
        """
        early = self.forwards < EARLY_FORWARDS
        self.forwards += early
        if early or step % AUDIT_EVERY == 0:
            with self._barrier("audit", None):
                forward.audit(values=early)

    def before_update(self) -> None:
        if self._vitals is not None and self.sampling is not None:
            with self._vitals_barrier():
                self._vitals.before_update()

    def after_update(self) -> None:
        if self._vitals is not None and self.sampling is not None:
            with self._vitals_barrier():
                self._vitals.after_update()
                self._waiting.append(self.sampling)
                self.expects = True
            self.sampling = None

    def after_step(self, reading: Reading, step: int | None = None) -> None:
        """After an applied step: the findings of a sampled one. One host read there, none elsewhere. `step` is what the
        sampling was begun with, where that is not the reading's."""
        if self._first_loss is None:
            self._first_loss = abs(reading.loss)
        if self._provisional and reading.step - self._provisional[0].step >= _PATIENCE:
            self.decide_provisional()
        if self._vitals is not None and self._waiting and self._waiting[0] == (reading.step if step is None else step):
            with self._vitals_barrier():
                self._waiting.pop(0)
                self._tell(self._vitals.findings(reading.step, loss=reading.loss, loss_scale=reading.loss_scale))
        numbers = False
        if (recorder := self.recorder) is not None:
            with self._barrier("loop_record", None):
                recorder.settled(reading)
                self._enter_loop_findings(recorder.take(), reading.step)
            numbers = recorder.wants_numbers
        if self._collapse.ready:
            with self._barrier("collapse", None):
                self._enter_loop_findings(self._collapse.findings(), reading.step)
        if self._first_batch.ready:
            with self._barrier("first_batch", None):
                self._enter_loop_findings(self._first_batch.look(reading.step), reading.step)
        self.expects = bool(self._provisional or self._waiting or numbers)

    def _enter_loop_findings(self, findings: Sequence[Finding], step: int) -> None:
        """Errors in the loop itself: the record is the proof, so each is an incident."""
        for each in findings:
            if (each.code, each.subject) in self._entered:  # two checks may see the same
                continue
            self._entered.add((each.code, each.subject))
            if each.evidence.get("suspected"):  # for a replay to confirm
                self.suspects.append(each)
                continue
            found = replace(each, step=step)
            self._log.tell_vital(found)
            self._log.show(f"{found.code} {found.slug}: {found.detail}", kind=found.code)
            # Of several ranks one would count an incident that the others do not have.
            if num_ranks() == 1 and found.evidence.get("certain", True):
                self._log.enter_silent(step, (found,), silent_diagnosis(found))
        if findings:
            self._log.announce()

    def unscaled_by_guard(self) -> None:
        """The guard unscales the gradients itself: their size before the update says nothing."""
        if self.recorder is not None:
            self.recorder.measure_no_sizes()

    def dropped(self) -> None:
        """The update that was due was dropped by the loop's GradScaler."""
        if self.recorder is not None:
            self.recorder.skipped()

    def _expect(self) -> None:
        self.expects = True

    def close(self) -> None:
        """Leave no hook on the model or its optimizers."""
        self._first_batch.close()
        self._collapse.close()
        if self._vitals is not None:
            with self._vitals_barrier():
                self._vitals.discard()
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            with self._barrier("loop_record", None):
                recorder.close()
                last = self._log.recent[-1].step if self._log.recent else 0
                self._enter_loop_findings(recorder.take(), last)

    def after_refusal(self) -> None:
        """A refused step was no sample of anything; take the hooks off."""
        if self.recorder is not None:
            self.recorder.skipped()
        self.sampling = None
        self._waiting.clear()
        if self._vitals is not None:
            with self._vitals_barrier():
                self._vitals.discard()

    def decide_provisional(self) -> None:
        """Tell what was found provisionally if the loss is still above where it began, and forget it if not. At the end
        of a run, too."""
        waiting, self._provisional = self._provisional, []
        losses = [abs(each.loss) for each in self._log.recent[-_LAST:] if each.applied and math.isfinite(each.loss)]
        if waiting and losses and self._first_loss is not None and median(losses) > self._first_loss:
            self._say(waiting)

    def ended(self) -> None:
        """The training has ended: decide what was waiting, and judge what never took place. Not after an error."""
        self.decide_provisional()
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if self.recorder is not None and error is None:
            with self._barrier("loop_record", None):
                self.recorder.ended()

    def _vitals_barrier(self) -> _SwitchingOff:
        return _SwitchingOff(self)

    def _switch_off(self, fault: BaseException) -> None:
        vitals, self._vitals = self._vitals, None
        if vitals is not None:
            with contextlib.suppress(Exception):  # it has failed already; what matters is that its hooks are off
                vitals.discard()
        self.sampling = None
        self._waiting.clear()
        self._barrier.note("vitals", fault)

    def _tell(self, findings: Sequence[Finding]) -> None:
        self._provisional += [found for found in findings if found.evidence.get("provisional")]
        self._say([found for found in findings if not found.evidence.get("provisional")])

    def _say(self, findings: Sequence[Finding]) -> None:
        for found in findings:
            self._log.tell_vital(found)
            if found.severity is not Severity.NOTE:
                self.suspects.append(found)
                self._log.show(f"{found.code} {found.slug}: {found.detail}", kind=found.code)


class _SwitchingOff:
    """Around a call into the vitals: what breaks once would break at every sample, so it is switched off."""

    def __init__(self, checker: SampledChecker) -> None:
        self._checker = checker

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, tb: object) -> bool:
        if fault is None or not isinstance(fault, Exception):
            return False
        self._checker._switch_off(fault)
        return True
