"""What is done about a refused step: which call and which samples, a diagnosis, and what was and was not replayed.

A bad value begins before the model (in the batch), inside a call of the model, or in the loss code after
it. The first two are found by making the calls again. The third cannot be run again: the graph autograd kept gives a
hint, and the next steps are traced while they run, so that a recurrence is located exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.readable_tensors import has_values
from ....diagnosis.diagnose import diagnose
from ....diagnosis.distributed.unsharded import UsesCollectives
from ....diagnosis.isolation.resource_limits import OutOfTime, ResourceLimits, for_incident, in_a_line, limits
from ....diagnosis.locate.crash_origin import explain_crash
from ....diagnosis.replay.batch_tree import walk_batch
from ....diagnosis.replay.replayable import StepFacts
from ....engine.record.diagnosis_time import DiagnosisTime
from ....engine.recovery.reruns.quiet import quiet
from ....engine.recovery.reruns.side_effects import HasEffect, supervised
from ....engine.recovery.reruns.user_state import UserState
from ....engine.state.training_state import TrainingState
from ....records import Diagnosis, Reading
from ....reporters.run_data.counted import ran_again
from ...loops.data_origin import MadeBad, origin_in_loader
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.call_log import Call, outputs_in
from ..hooks.find_models import runs_alone
from ..hooks.loader_batches import FoundSamples, bad_rows_of, with_samples
from ..look_budget import LookBudget
from ..spoiled_weights import LINES_AFTER, kept_weights, spoiled_weights
from .loop_lines import LoopPass
from .loop_step import MADE_BEFORE, LoopStep, bad_pass
from .model_call_step import ModelCallStep, own_loss, rows_of_call
from .rank_messages import RankMessages, on_its_own
from .rerunnable_parts import RerunnableParts
from .step_tracing import TRACED_STEPS, StepTracing, outside
from .update_origin import origin_of_rate, with_line_of_update

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

_TALK = "the loop's own lines were not run again: they talk to the other ranks"
_ELSEWHERE = "the gradient was made bad by another rank: this rank's own calls and loss are finite"
_BY_HAND = "no backward was called: the lines before the update were run again, and gave the same gradients"
_BEHIND = "the gradient is finite after backward, and the lines between backward and the update cannot be run again"
_MAX_BY_HAND, _MAX_ARMINGS = 8, 3
_ALWAYS, _SHARE = 6, 0.1
"""The first incidents of a process are diagnosed; later ones while that takes no more of the time than this."""


class RefusalExaminer:
    """The diagnosis for a watch."""

    def __init__(self, watch: ProcessLoop) -> None:
        self._watch = watch
        self._traced_steps = self._armings = 0
        self._budget, self._time = LookBudget(_ALWAYS, _SHARE), DiagnosisTime()
        self._loop: OptimizerLoop | None = None
        self._tracing: StepTracing | None = None
        self._guilty: Call | None = None
        self.found: FoundSamples | None = None
        self.bad_inputs: tuple[str, ...] = ()
        self.words: RankMessages | None = None
        """What ranks tell each other of the step at hand; None where there is no one to tell."""

    # -- listening while steps are traced

    @property
    def tracing(self) -> bool:
        """Whether the program's own step is being traced."""
        return self._tracing is not None

    def call_begins(self, call: Call) -> None:
        if self._traced_steps and self._tracing is None and self._loop is not None and StepTracing.possible(self._loop):
            self._tracing = StepTracing(call, self._loop)

    def backward_begins(self, loss: Tensor) -> None:
        if self._tracing is not None:
            self._tracing.backward_begins(loss)

    def update_begins(self) -> None:
        """The window ends; if its update is refused the trace will be asked."""
        self._watch.slices.judged()
        self._guilty = None
        if self._tracing is not None:
            self._tracing.close()
            self._traced_steps -= 1
            self._last, self._tracing = self._tracing, None
        else:
            self._last = None

    _last: StepTracing | None = None
    _talk = False
    _why_not_lines: str | None = None
    _why_not_calls: str | None = None

    def let_go(self) -> None:
        """Keep nothing of a step that was looked into alive."""
        if self._tracing is not None:
            self._tracing.close()
        self._loop = self._tracing = self._last = self._guilty = self.found = None
        self.bad_inputs, self._traced_steps = (), 0

    # -- which samples

    def look_at_batch(self) -> None:
        """Which call of the window has bad arguments, and which samples it is made of. Reads the device."""
        calls = self._watch.models.calls
        self.bad_inputs, self._guilty, self.found = (), None, None
        for call in calls:
            bad = _bad_entries(call.batch)
            if bad:
                self.bad_inputs, self._guilty = bad, call
                break
        if self._guilty is None and len(calls) == 1:
            self._guilty = calls[0]
        if self._guilty is not None:
            self.found = self._watch.batches.find((self._guilty.args, self._guilty.kwargs))

    @property
    def batch_key(self) -> str | None:
        """How the batch is called in the journal: by its samples where a loader showed them."""
        return None if self.found is None else self.found.name

    # -- why

    def examine(self, loop: OptimizerLoop, reading: Reading, state: TrainingState) -> None:
        """Diagnose the refused step as far as it can be, and write down its samples."""
        log = loop.log
        if not log.incidents or log.incidents[-1].last_step != reading.step:
            return  # an overflow of a loss scale is no incident
        self._loop = loop
        depth = log.diagnosis_due(self._watch.settings.diagnose)
        if depth is not None and self._watch.alone and not self._budget.begin():  # ranks ask together
            depth, left_out = None, self._budget.left_out
            sentence = f"{left_out} incidents were not diagnosed: the others took a tenth of the program's time"
            self._watch.ledger.say_at_end("not_diagnosed", sentence)
        diagnosis = self._together(loop, reading, state, depth)
        if diagnosis is not None:
            diagnosis = with_line_of_update(diagnosis, loop.optimizer, self._rate_made)
            if self.found is not None and log.incidents[-1].batch_key is None:
                log.incidents[-1] = replace(log.incidents[-1], batch_key=self.batch_key)
            log.enter_diagnosis(diagnosis)
        whole = self.found is not None and not (diagnosis is not None and diagnosis.rows)
        if whole and self.found is not None and (not reading.bad_ranks or loop.log.journal.rank in reading.bad_ranks):
            cause = diagnosis.cause.slug if diagnosis is not None and diagnosis.cause is not None else "non_finite"
            log.journal.quarantine(self.batch_key or "", step=reading.step, cause=cause, sample_ids=self.found.indices)

    def _together(
        self, loop: OptimizerLoop, reading: Reading, state: TrainingState, depth: str | None
    ) -> Diagnosis | None:
        """This rank's own diagnosis, or that of the rank where it began."""
        words = self.words
        found: Diagnosis | None = None
        try:
            if depth is not None and (words is None or words.leads(reading)):
                with self._budget:
                    found = self._diagnosis(loop, reading, state, depth)
            if found is not None and self.found is not None:
                found = with_samples(found, self.found)
        finally:
            sound = found is not None and found.because == _ELSEWHERE
            other = words.share(reading, None if sound else found, self.batch_key) if words is not None else None
        if other is None:
            return found
        diagnosis, batch_key = other
        if loop.log.journal.rank not in reading.bad_ranks:
            self.found = None  # the batch of this rank was finite
        incidents = loop.log.incidents
        incidents[-1] = replace(incidents[-1], batch_key=batch_key or incidents[-1].batch_key)
        return diagnosis if depth is not None else None

    def _diagnosis(self, loop: OptimizerLoop, reading: Reading, state: TrainingState, depth: str) -> Diagnosis | None:
        watch = self._watch
        symptom = loop.log.incidents[-1].symptom
        if symptom == "spike":
            return None
        self._talk, self._why_not_lines, self._why_not_calls = False, None, self._why_not_again()
        found: Diagnosis | None = None
        with self.in_time(loop) as own:
            try:
                with nullcontext() if watch.alone else on_its_own(loop, state, watch.models.roots()):
                    found = self._replayed(loop, reading, state, symptom, depth)
            except UsesCollectives:
                self._why_not_calls = "the step itself talks to the other ranks"
            except OutOfTime:
                self._why_not_calls = own.stopped()
        if found is not None:
            return found
        if self._last is not None:
            seen = self._last.diagnosis(symptom, reading.step)
            if seen is not None:
                return seen
        if self._armings < _MAX_ARMINGS:
            self._armings += 1
            self._traced_steps = TRACED_STEPS
        found = outside(watch, symptom, reading, self._why_not_calls)
        told = (_TALK,) if self._talk else (self._why_not_lines,) if self._why_not_lines else ()
        return replace(found, notes=(*told, *found.notes))

    def _replayed(
        self, loop: OptimizerLoop, reading: Reading, state: TrainingState, symptom: str, depth: str
    ) -> Diagnosis | None:
        """By the loop's lines, or else by the model's calls, where these can be made again."""
        watch, kept = self._watch, kept_weights(loop) if reading.bad_parameters else {}
        found = self._by_slices(loop, reading, state, symptom, depth)
        if found is None and not watch.slices.reached and not watch.backwards.losses:
            found = self._by_hand(loop, reading, state, symptom, depth)
        if found is None and self._why_not_calls is None:
            try:
                found = self._by_replay(loop, reading, state, symptom, depth)
            except UsesCollectives:
                raise
            except HasEffect as effect:
                self._why_not_calls = f"running it again would have an effect: {effect}"
            except Exception as error:  # the program's forward, out of its place, may raise anything
                self._why_not_calls = f"made again, the model's call raised {in_a_line(error)}"
        if kept and (found is None or not _explains(found)):
            step = spoiled_weights(watch, loop, RerunnableParts(watch, loop, reading, state, symptom), kept)
            lines = self._from_lines(step, step.loop_passes, depth) if step is not None else None
            found = replace(lines, notes=(*lines.notes[:-1], LINES_AFTER)) if lines and _explains(lines) else found
        return found

    def in_time(self, loop: OptimizerLoop) -> AbstractContextManager[ResourceLimits]:
        """Around all that is run again because of one incident: the program's runs share the time for that."""
        return for_incident(loop.log, self._time)

    def with_line_of_loader(self, found: Diagnosis, batch_key: str | None) -> Diagnosis:
        """A diagnosis of a batch that came in bad, with the line of the data set or the collate function that made it
        so, if making the batch once more shows it."""
        source = self._watch.batches.source_of(batch_key) if _came_in_bad(found) else None
        if source is None or found.origin is None or found.origin.stack:
            return found
        try:
            made = origin_in_loader(source, _without_effect)
        except (Exception, HasEffect):  # their lines, out of their place, may raise anything
            return found
        if made is None:
            return found
        note = "the batch was made once more from its samples: this line of the program makes it non-finite"
        place = replace(found.origin, op=made.op, source=made.stack[0], stack=made.stack, code_line=made.code_line)
        return replace(found, origin=place, notes=(*found.notes, note))

    def _rate_made(self, optimizer: Optimizer) -> MadeBad | None:
        """The line that makes the rate non-finite, if asking the schedule once more shows it."""
        try:
            return origin_of_rate(self._watch.followers.of([optimizer]), _without_effect)
        except (Exception, HasEffect):  # their function, out of its place, may raise anything
            return None

    def _why_not_again(self) -> str | None:
        """Why the calls of this window cannot be made again, as a clause; None if they can."""
        models = self._watch.models
        if not models.calls or models.entry is None:
            return "no call of a model was heard in this step"
        if models.lost_calls:
            return f"the model was called {models.lost_calls + len(models.calls)} times for one update"
        if any(call.overwritten for call in models.calls):
            return "the model's arguments were written to after the call"
        if not all(runs_alone(call.module) for call in models.calls):
            return "one rank cannot call this model without the others"
        if len({id(call.module) for call in models.calls}) > 1:
            return "several models were called for one update"
        return None

    def _by_replay(
        self, loop: OptimizerLoop, reading: Reading, state: TrainingState, symptom: str, depth: str
    ) -> Diagnosis | None:
        """By making the calls again; None where they come out finite and so did what came back to them."""
        models = self._watch.models
        calls = list(models.calls)
        inside = all(own_loss(call) is not None for call in calls)
        if models.entry is None:
            return None
        replayable = self._calls_replayable(loop, reading, state, symptom)
        with replayable.examining():
            guilty = self._first_bad_output(replayable)
        if guilty is not None and self._guilty is not guilty:
            self._guilty = guilty
            self.found = self._watch.batches.find((guilty.args, guilty.kwargs))
        poisoned = reading.bad_parameters or reading.bad_state or reading.bad_buffers
        if guilty is None and not poisoned:
            gradients = [gradient for call in calls for gradient in call.output_gradients.values()]
            sound = bool(gradients) and all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
            if sound and math.isfinite(reading.loss) and not self._watch.alone:
                return _elsewhere(symptom)
            if not math.isfinite(reading.loss) or not sound:
                return None  # the loss code, or what it sent back
        found = diagnose(replayable, depth=depth if inside else "origin")
        sound_again = found.reproduced[1] and not found.reproduced[0]
        partial = self._why_not_lines is not None and MADE_BEFORE in self._why_not_lines
        if sound_again and (partial or not self._watch.backwards.losses):
            return None  # these calls are only a part of what the gradient came from, or the program wrote it by hand
        if sound_again and found.origin is not None and found.origin.op is None:
            notes = (*found.notes, "the model's calls were replayed from the same bits; nothing bad came out of them")
            return replace(found, notes=notes)
        how = "the model's call was replayed, forward and backward; its loss is the model's own"
        if not inside:
            how = "the model's call was replayed; the code from its output to the loss was not, so no remedy was tried"
        return replace(found, notes=(*found.notes, how))

    def _calls_replayable(
        self, loop: OptimizerLoop, reading: Reading, state: TrainingState, symptom: str
    ) -> ModelCallStep:
        models, calls = self._watch.models, list(self._watch.models.calls)
        inside = all(own_loss(call) is not None for call in calls)
        facts = StepFacts(
            step=reading.step, symptom=symptom, findings=(), history=tuple(loop.log.recent),
            accumulation=len(calls), device_type=loop.parameters[0].device.type,
            autocast=next(iter(calls[0].autocast.values()), None), loss_scale=reading.loss_scale,
            select_rows=rows_of_call if inside else None,
            parameter_names={id(p): name for name, p in loop.named_parameters().items()},
        )  # fmt: skip
        assert models.entry is not None
        return ModelCallStep(loop, state, models.forward_state(), models.entry, calls, facts, reading.loss)

    def _by_slices(
        self, loop: OptimizerLoop, reading: Reading, state: TrainingState, symptom: str, depth: str
    ) -> Diagnosis | None:
        """By running the loop's own lines again; None where they cannot be, or do not give the loss they gave.

        The lines from the model's call are tried first, then longer parts of the loop. If the batch itself was bad when
        it reached those lines and good when the loader gave it, the loop's body shows what the program did to it."""
        models = self._watch.models
        if not all(runs_alone(call.module) for call in models.calls):
            return None
        rerun = RerunnableParts(self._watch, loop, reading, state, symptom)
        kept: Diagnosis | None = None
        shown: set[Any] = set()
        for loop_passes in rerun.attempts():
            lines = tuple((loop_pass.slice.code, loop_pass.slice.first_line) for loop_pass in loop_passes)
            if kept is not None and (lines in shown or any(_bad_entries(each.batch) for each in loop_passes)):
                continue  # with other random numbers they show the same; or it was bad before these lines, too
            replayable = rerun.replayable(loop_passes)
            try:
                found = self._attempt(replayable, loop_passes, reading, symptom, depth if kept is None else "origin")
                if kept is not None and found is not None and _explains(found) and depth != "origin":
                    found = self._from_lines(replayable, loop_passes, depth)
                if kept is not None:
                    limits().check()
            except OutOfTime:
                if kept is None:
                    raise
                return replace(kept, notes=(*kept.notes, f"longer parts of the loop: not tried: {limits().stopped()}"))
            finally:
                replayable.release()
            rerun.made_before = rerun.made_before or replayable.forward_only
            if found is not None:
                shown.add(lines)
            if found is None or (kept is not None and not _explains(found)):
                continue
            if not _came_in_bad(found) or kept is not None or not rerun.was_given_good():
                return found
            kept = rerun.with_line_of_loop(found, loop_passes[0])
        return kept

    def _by_hand(
        self, loop: OptimizerLoop, reading: Reading, state: TrainingState, symptom: str, depth: str
    ) -> Diagnosis | None:
        """Of gradients that no backward made: by running the lines again that wrote them; None where that does not give
        the same gradients, or where they came in bad."""
        rerun = RerunnableParts(self._watch, loop, reading, state, symptom)
        refused = [parameter.grad for parameter in loop.parameters]
        for _, (loop_pass, lines) in zip(range(_MAX_BY_HAND), self._watch.slices.before_update(), strict=False):
            given = [value for name, value in lines.taken.items() if name in lines.given]
            given = [tensor for tensor in tensors_in(given) if has_values(tensor)]
            if not all(bool(torch.isfinite(tensor.detach()).all()) for tensor in given):
                continue  # it was made before them
            replayable = rerun.replayable([loop_pass])
            try:
                found = (
                    self._from_lines(replayable, [loop_pass], depth) if replayable.spoiled_by(lines, refused) else None
                )
            finally:
                replayable.release()
            if found is not None and _explains(found):
                return replace(found, notes=found.notes[:-1] + (_BY_HAND,))
        return None

    def _attempt(
        self, replayable: LoopStep, loop_passes: Sequence[LoopPass], reading: Reading, symptom: str, depth: str
    ) -> Diagnosis | None:
        """One way to run the lines again; None where it does not give the loss that the loop had."""
        with replayable.examining():
            try:
                why_not = replayable.why_not()
            except UsesCollectives:
                self._talk, why_not = True, _TALK
        if why_not is not None and (replayable.raised is None or math.isfinite(reading.loss)):
            self._why_not_lines = self._why_not_lines or f"not replayed: {why_not}"
            return None
        poisoned = reading.bad_parameters or reading.bad_state or reading.bad_buffers
        if not self._watch.alone and not poisoned and why_not is None and replayable.sound():
            return _elsewhere(symptom)
        after = self._watch.slices.after_backward(loop_passes[0]) if math.isfinite(reading.loss) else None
        unknown = after is not None and not poisoned and replayable.spoiled_by(after) is None
        found = self._from_lines(replayable, loop_passes, depth)
        if unknown and found is not None and found.cause is not None and found.cause.slug == "transient_fault":
            return replace(found, cause=None, confidence=0.0, trials=(), because=_BEHIND)
        return found

    def _from_lines(self, replayable: LoopStep, loop_passes: Sequence[LoopPass], depth: str) -> Diagnosis | None:
        """The diagnosis of lines that reproduce the loss, with the samples of the micro-batch where it began."""
        raised = replayable.raised
        depth = "origin" if raised is None and replayable.forward_only else depth
        try:
            found = explain_crash(replayable, raised, depth=depth) if raised else diagnose(replayable, depth=depth)
        except UsesCollectives:
            raise
        except Exception as error:  # a replay out of its place may raise anything; the step is diagnosed otherwise
            self._why_not_lines = f"not replayed: {in_a_line(error)}"
            return None
        if found is None or (replayable.forward_only and not found.reproduced[0]):
            return None
        guilty = replayable.loop_passes[0] if len(loop_passes) == 1 else bad_pass(replayable)
        if guilty is not None and (self.found is None or len(loop_passes) > 1):
            self.found = self._watch.batches.find(guilty.batch) or self.found
        if guilty is not None and self.found is not None and _came_in_bad(found) and not found.rows:
            found = replace(found, rows=bad_rows_of(guilty.batch, self.found) or found.rows)
        how = ran_again(loop_passes[0].slice)
        if replayable.forward_only:
            how += ", forward only: the graph behind them is the program's, so no remedy was tried"
        return replace(found, notes=(*found.notes, how))

    def _first_bad_output(self, replayable: ModelCallStep) -> Call | None:
        replayable.restore()
        for batch in replayable.batches:
            with torch.no_grad(), replayable.rehearsed():
                outputs = [output for output in outputs_in(batch.call.again()) if has_values(output)]
            if any(bool(torch.isnan(output).any()) for output in outputs) or _infinite(outputs):
                return batch.call  # type: ignore[no-any-return]
        return None

    def crashed_in_calls(
        self, loop: OptimizerLoop, reading: Reading, error: BaseException, depth: str
    ) -> Diagnosis | None:
        """By the model's calls: one raises this error again, or gives what the program then raised about."""
        if self._why_not_again() is not None:
            return None
        state = self._watch.state_of(loop)
        try:
            return self._by_replay(loop, reading, state, "nan_loss", depth)
        except type(error):
            return explain_crash(self._calls_replayable(loop, reading, state, "nan_loss"), error, depth=depth)


@contextmanager
def _without_effect(parts: Sequence[Any]) -> Iterator[None]:
    """Around lines of a data set that are run again: an effect raises HasEffect, and what they assign is undone."""
    state = UserState(parts)
    if not state.complete:
        raise HasEffect("not all that is within reach of the data set can be restored")
    try:
        with quiet(), supervised(state, ()):
            yield
    finally:
        state.restore()


def _came_in_bad(found: Diagnosis) -> bool:
    """Whether what the lines read was bad already."""
    return found.origin is not None and found.origin.phase == "data"


def _explains(found: Diagnosis) -> bool:
    """Whether a diagnosis names the operation."""
    return found.origin is not None and found.origin.op is not None and bool(found.reproduced[0])


def _elsewhere(symptom: str) -> Diagnosis:
    """A finite step of this rank, refused with the others."""
    return Diagnosis(
        symptom=symptom,
        phase="backward",
        because=_ELSEWHERE,
        notes=("this rank's calls were replayed and came out finite; see the other ranks' incident",),
    )


def _bad_entries(batch: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arguments that hold a NaN; an infinity may be a mask."""
    return tuple(
        name for name, value in walk_batch(batch) if has_values(value) and bool(torch.isnan(value.detach()).any())
    )


def _infinite(outputs: Sequence[Tensor]) -> bool:
    """A positive infinity is no mask; a negative one may well be."""
    return any(bool(torch.isposinf(output).any()) for output in outputs if not output.is_complex())
