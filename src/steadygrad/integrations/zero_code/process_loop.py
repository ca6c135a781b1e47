"""What one process of a program under `steady run` shows: its models, calls, backwards, clipping and updates.

Each optimizer's updates are judged by their own engine (see `loop`); this is what is known of the loop around
them. Nothing of ours may stop the program: every entry is shielded, and where we fail, a bare check for NaN remains.
"""

from __future__ import annotations

import math
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from ...detect.gradient_norms import Gradients
from ...detect.tensors.torch_private import num_dispatch_modes
from ...engine import validate
from ...engine.distributed.consensus import SingleRank
from ...engine.fault_barrier import FaultBarrier
from ...engine.state.training_state import TrainingState, bad_state
from ...engine.step.trained_parameters import parameters_of
from ...policy import Capabilities, Policy
from ...records import Action, Decision, Reading, rerun_flag
from ..loops.patch_barrier import closure_in
from ..loops.patching import Patches
from ..optimizer.held_scale import HeldScales
from ..optimizer.optimizer_loop import OptimizerLoop
from .ended_trainings import EndedTrainings
from .hooks.backward_losses import BackwardPasses
from .hooks.call_log import Call, note_loss
from .hooks.clip_norms import ClipNorms
from .hooks.loader_batches import LoaderBatches
from .hooks.loop_events import LoopEvents, Skipped
from .hooks.model_hooks import ModelHooks
from .hooks.optimizer_step import evaluation, finite, step_in_backward
from .hooks.schedulers_and_averages import SchedulersAndAverages
from .hooks.torch_patches import listen
from .launch.run_options import RunOptions
from .process_report import ProcessReport
from .process_sampled_checks import SampledChecks
from .program_optimizers import ProgramOptimizers
from .rerun.examine_refusal import RefusalExaminer
from .rerun.explain_error import explain, why_left_out
from .rerun.good_states import GoodStates, RollbackResult
from .rerun.loop_lines import LoopLines
from .rerun.rank_messages import RankMessages, parts_only
from .separate_trainings import SeparateTrainings

_params = operator.itemgetter("params")


class ProcessLoop:
    """One process's watch. `start` patches torch, `finish` says what was seen."""

    def __init__(self, settings: RunOptions) -> None:
        self.settings = settings
        self.policy = Policy.named(settings.policy).but(start_patience=10)
        self.past_trainings = EndedTrainings(self)
        self.optimizers = ProgramOptimizers(self.past_trainings.optimizer_gone)
        self.backwards = BackwardPasses(self.optimizers.living)
        self.batches = LoaderBatches()
        self.past = GoodStates(self)
        self.followers = SchedulersAndAverages(self.past.followed)
        self.barrier = FaultBarrier()
        self._in_snapshots, self._in_backward = self.barrier("snapshots"), self.barrier("backward")
        self.in_events = self.barrier("loop_events")
        self.clipping, self.scales = ClipNorms(self.barrier), HeldScales()
        self.ledger = ProcessReport(settings, self.barrier)
        self.models = ModelHooks(self)
        self.separate = SeparateTrainings(self)
        self.slices = LoopLines()
        self.events = LoopEvents(
            self.slices, self.batches, lambda: self.models.calls, self._skipped_by_program, lambda: self.away,
            lambda: why_left_out(self),
        )  # fmt: skip
        self.examiner = RefusalExaminer(self)
        self.sampled = SampledChecks(self)
        self.busy, self.step, self.inside_trainer = False, 0, 0
        self.ranks = SingleRank()  # ranks agree after a refusal only, by their own means: see RankWords
        self._words: weakref.WeakKeyDictionary[Optimizer, RankMessages] = weakref.WeakKeyDictionary()
        self._making: OptimizerLoop | None = None
        self._alone: bool | None = None  # known while an update is being made
        self._number, self._together = 0, True
        self._good, self._refused_steps, self._process = list[int](), list[int](), os.getpid()
        self._patches: Patches | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._patches = self._patches or listen(self)

    def stop(self) -> None:
        """Everything of torch as it was."""
        patches, self._patches = self._patches, None
        self.examiner.let_go()
        if patches is not None:
            patches.undo()
        self.separate.close()
        self.models.close()

    def finish(self) -> dict[str, Any]:
        """What was seen, as plain data; closes the journal."""
        if os.getpid() != self._process:
            return {}
        try:
            for part, look in (("loop_events", self.events.finished), ("vitals", self.sampled.finish)):
                with self.barrier(part, None):
                    look()
            with self.barrier("backward", None):
                self.backwards.read()
                self.ledger.note_unguarded(self.backwards.first_bad)
        finally:  # also where someone does not want to wait
            note = self.ledger.close(self)
        return note

    @property
    def alone(self) -> bool:
        """Whether no other rank trains the same weights."""
        if self._alone is not None:
            return self._alone
        return not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)

    @property
    def away(self) -> bool:
        """Whether we run the program's code ourselves, or a trainer's guard, a parent or another training does."""
        return self._is_elsewhere or self.separate.here

    @property
    def _is_elsewhere(self) -> bool:
        """The same as far as other trainings that run at the same time do not matter."""
        off = self.busy or self._patches is None or self.ledger.guards or rerun_flag.passes > 0
        return bool(off) or os.getpid() != self._process

    @property
    def idle(self) -> bool:
        """Whether no update is being made, and what happens is our business."""
        return self._making is None and not self.away

    @property
    def _is_off(self) -> bool:
        return self._patches is None or bool(self.ledger.guards) or os.getpid() != self._process

    @property
    def loops(self) -> list[OptimizerLoop]:
        """The optimizers whose training is at home here."""
        return [loop for loop in self.ledger.loops if loop.around is self]

    @property
    def looked_into(self) -> bool:
        """Whether other code (a guard of the program's own) is tracing a step just now."""
        return num_dispatch_modes() > 0 and not self.examiner.tracing

    # -- what is heard before an update

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was made: its parameters tell which modules are the models. Between two steps a new training may
        begin, and the one before must not be kept in memory by us."""
        with self.barrier("models", None):
            if self.step and not self.models.heard and self.idle:
                self.past_trainings.let_go()
            self.optimizers.made(optimizer, self.step)
            self.backwards.optimizer_made(optimizer)
            self.sampled.optimizer_made(optimizer)
            self.models.adopt(parameters_of(optimizer))

    def ended(self, log: Any, weights: dict[str, Tensor]) -> None:
        """The program has dropped an optimizer, and with it a training: its memory is for the next."""
        left = {**weights, **self.models.moving_buffers()} if self.idle else weights
        if self.idle and self.ledger.dropped(log, left) and not self.models.heard:  # else another step is under way
            self.past_trainings.let_go()

    def is_called_elsewhere(self, module: nn.Module | None) -> bool:
        """Whether a model's call is not our business; where another training makes it, that one takes note."""
        elsewhere = self.separate.begins()
        if elsewhere and module is not None and not self._is_off:
            self.separate.model_called(module)
        return elsewhere or self._is_elsewhere or (num_dispatch_modes() > 0 and self.looked_into)

    def entered(self) -> bool:
        """A model is called in training: whether the round before was left out by the program."""
        with self.in_events:
            return self.events.called()
        return False

    def called(self, call: Call, tensors: Sequence[Tensor]) -> None:
        """A model is called, with these tensors among its arguments."""
        if len(self.models.calls) == 1:
            self.slices.forget()
            with self._in_snapshots:
                in_use = self.ledger.in_use_at(self)
                self.past.window_begins(in_use)
                for loop, _ in in_use:
                    loop.undo_faults(self.step, before_forward=True)
        self.batches.tables.called(tensors)
        self.slices.called(call)
        self.sampled.called(call)
        self.examiner.call_begins(call)

    def zeroed(self) -> None:
        """Gradients were cleared."""
        if not self.away:
            if self._making is None:  # a closure clears them before each of its evaluations
                with self.in_events:
                    self.events.zeroed()
            self.models.zeroed()
            self.backwards.zeroed()

    def handed_out(self, iterator: Any, batch: Any) -> None:
        """A loader hands a batch out."""
        with self.barrier("batches", None):
            self.batches.hand_out(iterator, batch)

    def name_of_batch(self, batch: Any) -> str:
        """How a batch is called: by its samples where a loader showed them, else by counting."""
        return self.batches.name(batch)

    def backward_begins(self, loss: Tensor) -> None:
        """A loss, before its backward."""
        with self._in_backward:
            self.backwards.begin(loss)
            self.batches.describe()
            self.batches.data.trained(loss)
            self.events.backward_begins(loss)
            note_loss(self.models.calls, loss)
            self.slices.backward_begins(loss)
            self.examiner.backward_begins(loss)
            self.sampled.backward_begins(loss)

    # -- at an update

    def around_step(self, original: Callable[..., Any], optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Every `optimizer.step(...)` of the program: judged, made or withheld, and looked at. One host read. A
        container's step calls its parts' steps: they are made with the container's, or not at all."""
        if self._is_off or not self._is_ours(optimizer):
            return original(*args, **kwargs)
        training = self.separate.training_of(optimizer)
        if training is not None:
            return self.separate.update(training, original, args, kwargs)
        if self._is_elsewhere or self._making is not None:
            return original(*args, **kwargs)
        if self.backwards.depth:
            return step_in_backward(self, original, optimizer, args, kwargs)
        loop = self._begin(optimizer)
        closure, self._making, self._alone = closure_in(args, kwargs), loop, self.alone
        try:
            if closure is not None:
                rest, named = args[1:], {key: value for key, value in kwargs.items() if key != "closure"}
                return loop.update_with_closure(
                    lambda run: original(run, *rest, **named), evaluation(self, closure), self._number,
                    self._numbers_of(loop),
                )  # fmt: skip
            loss = self.backwards.total(optimizer) if self._alone else None
            clipped = self.clipping.take(loop.parameters)
            if clipped is not None and len(self.backwards.losses) > 1:
                clipped.measured = None  # the sum of the losses is computed after that event
            make = self.sampled.around(loop, optimizer, lambda: original(*args, **kwargs))
            return loop.update(make, self._number, loss, clipped, holds=not parts_only(self, loop))
        finally:
            self._making = None
            try:
                self._end(loop, optimizer)
            finally:
                self._alone = None

    def failed(self, fault: Exception) -> None:
        """A fault of ours around a call of the program."""
        self.barrier.note("guard", fault)
        if not self.separate.here:
            self._making = self._alone = None
            for loop in self.loops:
                loop.end_update()

    def _is_ours(self, optimizer: Optimizer) -> bool:
        return not validate.is_claimed(optimizer) and any(map(_params, optimizer.param_groups))

    def _begin(self, optimizer: Optimizer) -> OptimizerLoop:
        loop = self.loop_of(optimizer)
        if loop.rests:
            self.ledger.wake()
            self.models.adopt(loop.parameters)
        self.past_trainings.steps(loop)
        if self.optimizers.last() is not loop:
            self.optimizers.takes_turn(loop, own_loss=self.backwards.are_new)
        self._number, self.step = self.step, self.step + 1
        loop.refused = False
        with self._in_snapshots:
            self.past.update_begins(loop, self._number)
        self.examiner.update_begins()
        return loop

    def _end(self, loop: OptimizerLoop, optimizer: Optimizer) -> None:
        """An update was made or withheld."""
        if loop.refused:
            self._refused_steps.append(self._number)
        with self._in_snapshots:
            if not loop.refused:
                self.past.landed(optimizer, loop.last)
        self.sampled.updated(loop)
        loop.last = None
        with self.in_events:
            if not (loop.refused or self.models.called):  # asked here: a closure calls the model inside of the update
                self.models.look_again(loop.parameters)
            if not loop.refused and self.backwards.of_others(optimizer):
                self.events.left_behind()
            self.events.stepped()
            self.slices.updated(refused=loop.refused)
            self.batches.tables.next_round()
        self.followers.updated(optimizer, refused=loop.refused)
        self.models.stepped()
        self.backwards.judged()

    def _skipped_by_program(self, event: Skipped) -> None:
        """A batch or an update that the loop left out by itself: an incident of the optimizer for this model."""
        optimizer = self.optimizers.trainer_of(*(call.module for call in event.calls))
        if optimizer is None or validate.is_claimed(optimizer):
            return
        loss, norm = (math.nan if value is None else value for value in (event.loss, event.grad_norm))
        reading = Reading(step=self.step, loss=loss, grad_norm=norm, batch_key=event.batch_key, refused=True)
        with self.barrier("diagnosis", None):
            self.examiner.look_at_batch()
            reading = replace(reading, bad_inputs=self.examiner.bad_inputs)
        what = self.ledger.words_of(event, self.backwards.count)
        self.loop_of(optimizer).skipped_by_program(self.step, reading, what)

    def _numbers_of(self, loop: OptimizerLoop) -> Callable[[Any], tuple[Tensor | None, Gradients | None]]:
        def numbers(_loss: Any) -> tuple[Tensor | None, Gradients | None]:
            return self._loss_of(loop), self.clipping.take(loop.parameters)

        return numbers

    def _loss_of(self, loop: OptimizerLoop) -> Tensor | None:
        """The loss of an update. Of several ranks each has its own, so none of them is judged."""
        return self.backwards.total(loop.optimizer) if self.alone else None

    def before_compiled(self, optimizer: Optimizer) -> bool:
        """A compiled `optimizer.step`: whether its update may be made. It is not looked at afterwards."""
        if self._is_off or not self._is_ours(optimizer):
            return True
        if self.separate.here:
            return not self.policy.acts or finite(parameters_of(optimizer))
        if self.away or self._making is not None:
            return True
        unknown: bool | None = None
        with self.barrier("guard", unknown) as answer:
            loop = self._begin(optimizer)
            answer.value = loop.admit(self._number, self._loss_of(loop), self.clipping.take(loop.parameters))
            self._end(loop, optimizer)
        return not self.policy.acts or finite(parameters_of(optimizer)) if answer.value is None else answer.value

    def scaler_step(self, original: Callable[[], Any], scaler: Any, optimizer: Any) -> Any:
        """A GradScaler drops a step by not calling the optimizer: an overflow is healthy, a bad loss is an incident."""
        before = self.step
        result = original()
        if self.step == before:
            self.sampled.dropped(optimizer)
        if self.away or not isinstance(optimizer, Optimizer) or not self._is_ours(optimizer) or not scaler.is_enabled():
            return result
        with self.barrier("guard", None):
            if self.step == before:
                self._dropped(scaler, optimizer)
            self.scales.stepped(scaler, optimizer, refused=self.followers.refused(optimizer))
        return result

    def _dropped(self, scaler: Any, optimizer: Optimizer) -> None:
        loop, loss = self._begin(optimizer), self.backwards.total(optimizer)
        self._together = False  # by this rank's own loss: the others may not know of anything
        try:
            loop.dropped(self._number, None if loss is None else float(loss), float(scaler.get_scale()))
        finally:
            self._together = True
        self.events.stepped()
        self.followers.updated(optimizer, refused=loop.refused)
        self.models.stepped()
        self.backwards.judged()

    def issued(self, loop: OptimizerLoop) -> None:
        """What `_end` need not do once the device has answered."""
        with self._in_snapshots:
            self.past.prepare(loop.optimizer)
            self.slices.updated(issued=True)

    def agree(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """A loss is this rank's own, and all ranks must decide alike: what is judged is the reduced gradient."""
        return reading

    def shown(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """The reading as it is recorded: with this rank's own loss, and with norms for the first optimizer only."""
        if not self.alone and (loss := self.backwards.total(loop.optimizer)) is not None:
            reading = replace(reading, loss=float(loss))
        return reading if loop.log is self.ledger.first else replace(reading, norms=(), names=())

    def capabilities(self, loop: OptimizerLoop, reading: Reading) -> Capabilities:
        return Capabilities(lr=False, hold=not parts_only(self, loop), rollback=bool(self._good))

    def withhold(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """Leave no trace of the step and look closer: at its batch, at the state, at what other ranks saw."""
        self._good = []
        if reading.scale_to_blame:
            return reading
        self.busy = True
        try:
            with self.barrier("forward_state", None):
                if uncertain := self.models.put_back():
                    self.ledger.not_restored(loop, uncertain)
            with self.barrier("diagnosis", None):
                self.examiner.look_at_batch()
            looked = {} if reading.undone else bad_state(self.state_of(loop))
            reading = replace(
                self.shown(loop, reading), norms=reading.norms, names=reading.names, **looked,
                bad_inputs=self.examiner.bad_inputs, batch_key=self.examiner.batch_key,
            )  # fmt: skip
            words = self.examiner.words = self._words_of(loop) if self._together and not self.alone else None
            reading = words.agree(reading) if words is not None else reading
            self._good = self.past.states_for(loop, reading, words)
        finally:
            self.busy = False
        return reading

    def diagnose(self, loop: OptimizerLoop, reading: Reading, decision: Decision) -> None:
        try:
            with self._working("diagnosis"):
                self.examiner.examine(loop, reading, self.state_of(loop))
        finally:
            self.models.go_on()

    def roll_back(self, loop: OptimizerLoop, decision: Decision) -> Decision:
        """To the newest good state. What came of it stands in the incident."""
        went: RollbackResult | None = None
        with self._working("snapshots"):
            went = self.past.go_back(decision.step, self._good)
        if went is None:
            decision = replace(decision, actions=(*decision.actions, Action.HALT))
            return loop.log.amend(decision, "no good state could be restored")
        loop.log.journal.event("rolled_back", to=went.step, batches_run_again=went.again, lost=went.lost)
        return loop.log.amend(decision, str(went))

    def halting(self, loop: OptimizerLoop, step: int) -> None:
        """Weights that are of no use are not what a program should save."""
        with self._working("snapshots"):
            steps = self.past.steps_before_ruin() if self.alone else []
            went = self.past.go_back(step, steps)
            if went is not None:
                loop.log.journal.event("rolled_back", to=went.step, batches_run_again=went.again, lost=went.lost)

    @contextmanager
    def _working(self, part: str) -> Iterator[None]:
        """Around what we run of the program's code, or do to its state: nothing of it is the program's."""
        self.busy = True
        try:
            with self.barrier(part, None):
                yield
        finally:
            self.busy = False

    def refused_since(self, step: int) -> int:
        """How many updates were refused from this step on, before the one at hand, or were of other trainings."""
        return sum(each >= step for each in (*self._refused_steps, *self.separate.steps))

    def _words_of(self, loop: OptimizerLoop) -> RankMessages | None:
        """What the ranks of this optimizer tell each other, made at its first refused step."""
        with self.barrier("ranks", self._words.get(loop.optimizer)) as answer:
            answer.value = answer.value or self._words.setdefault(loop.optimizer, RankMessages(loop.parameters))
        return answer.value

    def state_of(self, loop: OptimizerLoop) -> TrainingState:
        """Everything one optimizer's step can change."""
        forward = self.models.forward_state()
        return TrainingState(parameters=loop.named_parameters(), optimizers=[loop.optimizer], forward=forward)

    def loop_of(self, optimizer: Optimizer) -> OptimizerLoop:
        """The loop of an optimizer, made if this is its first step."""
        loop = self.optimizers.loop_of(optimizer)
        if loop is not None and loop.current:
            return loop
        parameters = parameters_of(optimizer)
        self.models.adopt(parameters)
        named = self.models.names()
        own = f"optimizer{self.optimizers.num_stepped}"
        names = {id(p): named.get(id(p), f"{own}.{place}") for place, p in enumerate(parameters)}
        if loop is not None:
            loop.follow(names)
            self.ledger.renamed(loop)
            return loop
        made = OptimizerLoop(
            optimizer, names, self.policy, self.ledger.journal(list(names.values()), optimizer), self.barrier, self
        )
        self.optimizers.stepped(made)
        self.ledger.enter(made, first_step=self.step)
        return made

    def crashed(self, error: BaseException) -> None:
        """An exception is about to end the program: was it a NaN that it did not mention?"""
        if not self.away:
            with self._working("crash"):
                explain(self, error)
