"""The sampled checks of a watched program: silent problems, looked for at a few steps of each training.

The same checks as at every other entry point (see `engine.step.sampled_checks`). What they warn of is looked for
again by running the loop's own lines of the last steps, and only what is seen there becomes an incident.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.graph.live_graph import LiveGraph
from ...detect.loop.measured.state_loads import StateLoads
from ...detect.loop.optimizer_state import watch_loads
from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.nested_tensors import num_rows_in
from ...diagnosis.locate.confirm_finding import ENOUGH_STEPS, look_into
from ...engine.recovery.diagnosis_requests import MOST
from ...engine.recovery.reruns.side_effects import HasEffect
from ...engine.step.sampled_checks import SampledChecker
from ...engine.step.trained_parameters import parameters_of
from ...records import Reading
from ..optimizer.optimizer_loop import OptimizerLoop
from .hooks.call_log import Call
from .hooks.schedulers_and_averages import UsedAverages
from .look_budget import LookBudget
from .rerun.loop_step import LoopStep
from .rerun.rerunnable_parts import RerunnableParts

if TYPE_CHECKING:
    from .process_loop import ProcessLoop

_ALWAYS = 8
_SHARE = 0.03
"""The first trainings of a process are looked at; later ones while that takes no more of the time than this."""


class SampledChecks:
    """One checker for each optimizer whose parameters belong to one model. Where nothing is due it is a comparison."""

    def __init__(self, watch: ProcessLoop) -> None:
        self._watch = watch
        self._checkers: weakref.WeakKeyDictionary[Optimizer, SampledChecker | None] = weakref.WeakKeyDictionary()
        self._admitted: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Those whose training is looked at. A checker may be made anew; the training is counted once."""
        self._first_look: tuple[weakref.ref[nn.Module], LiveGraph] | None = None
        """What the graph of the first loss of a model showed, before its optimizer was stepped."""
        self._new_optimizer = False
        self._sampled: int | None = None
        self._asked = self._tried = 0
        self._ends: list[weakref.ref[Optimizer]] = []
        self._gone: list[SampledChecker] = []
        """Those of trainings whose optimizer the program has dropped, and of which only the whole shows something."""
        self._budget = LookBudget(_ALWAYS, _SHARE)
        self.loads, self.averages = StateLoads(), UsedAverages()

    def optimizer_made(self, made: Optimizer) -> None:
        """Another optimizer: a model that it trains too is not sampled any more."""
        watch_loads(made)
        self._new_optimizer = True
        self._gone = [each for each in self._gone if not each.trains(parameters_of(made))]
        new = {id(parameter) for parameter in parameters_of(made)}
        for optimizer, checker in list(self._checkers.items()):
            model = checker.model() if checker is not None else None
            if model is not None and any(id(p) in new for p in model.parameters()):
                self.leave(optimizer)
                del self._checkers[optimizer]

    def _dropped(self, checker: SampledChecker) -> None:
        """The program has dropped an optimizer, wherever it is just then: what is known is told at the end."""
        if checker.recorder is not None and checker.recorder.waits_for_the_end:
            self._gone.append(checker)

    def leave(self, optimizer: Optimizer) -> None:
        """Sample this one no more."""
        if (checker := self._checkers.get(optimizer)) is not None:
            checker.after_refusal()  # takes its hooks off
            checker.close()
            self._checkers[optimizer] = None

    def called(self, call: Call) -> None:
        """A model is called: what measures activations is attached on a step that is due."""
        for reference in self._checkers.keyrefs():
            if (optimizer := reference()) is None or (checker := self._checkers.get(optimizer)) is None:
                continue
            loop = self._watch.optimizers.loop_of(optimizer)
            if loop is None or (step := loop.log.ledger.steps) in checker.idle:
                continue
            if checker.model() is call.module:
                with self._budget:
                    checker.before_forward(step)

    def backward_begins(self, loss: Tensor) -> None:
        """A loss, before its backward."""
        for reference in self._checkers.keyrefs():
            checker = self._checkers.get(optimizer) if (optimizer := reference()) is not None else None
            if checker is not None and checker.recorder is not None and checker.recorder.wants_losses:
                with self._budget:
                    checker.recorder.before_backward(loss)
        calls = self._watch.models.calls
        if self._new_optimizer and calls and self._watch.alone:
            self._new_optimizer = False
            if len({id(call.module) for call in calls}) == 1 and self._budget.admits():
                with self._budget:
                    self._look_at_first(calls[0], loss)

    def _look_at_first(self, call: Call, loss: Tensor) -> None:
        """The first loss comes before the first update, and so before there is a checker."""
        model, made = call.module, self._watch.optimizers.trainers_of(call.module)
        if not made or any(optimizer in self._checkers for optimizer in made):
            return
        if any(parameter.device.type != "cpu" for parameter in model.parameters()) or is_compiled(model):
            return
        graph = LiveGraph(model, made, lambda fault: self._watch.barrier.note("loop_record", fault))
        self._first_look = weakref.ref(model), graph
        graph.loss(loss, 0, num_rows_in((call.args, call.kwargs)))

    def around(self, loop: OptimizerLoop, optimizer: Optimizer, make: Callable[[], Any]) -> Callable[[], Any]:
        """An update, and around it what a sampled step notes of the gradients and weights."""
        if self.loads.any:
            self.loads.before_update(loop.parameters)
        checker = self._checkers.get(optimizer) or self._checker(loop)
        if checker is None or getattr(optimizer, "grad_scale", None) is not None:
            return make
        if checker.recorder is not None:
            self._tell_of_loads(loop, checker)
        step = loop.log.ledger.steps
        if step not in checker.idle:
            with self._budget:
                checker.before_forward(step)  # the first update of an optimizer comes before anything is known of it
        if checker.sampling is None:
            return make
        self._sampled = step

        def sampled() -> Any:
            with self._budget:
                checker.before_update()
            result = make()
            with self._budget:
                checker.after_update()
            return result

        return sampled

    def _tell_of_loads(self, loop: OptimizerLoop, checker: SampledChecker) -> None:
        """What is wrong with what the program loads: batches, and states."""
        watch = self._watch
        model = checker.model() if self.loads.any else None
        assert checker.recorder is not None
        checker.recorder.loaded(
            **watch.batches.wrong,
            empty_clips=watch.clipping.found_nothing(loop.parameters),
            not_loaded=self.loads.wrong(model) if model is not None else "",
        )

    def updated(self, loop: OptimizerLoop) -> None:
        """An update was made or withheld."""
        if self.loads.any:
            self.loads.after_update()
        sampled, self._sampled = self._sampled, None
        checker = self._checkers.get(loop.optimizer)
        if checker is None:
            return
        last = None if loop.refused else loop.last
        if last is not None and not (checker.expects or checker.suspects):
            return
        with self._budget:
            if last is None:
                checker.after_refusal()
            elif checker.expects:
                checker.after_step(last, -1 if sampled is None else sampled)
            if checker.suspects and loop.last is not None and loop.log.ledger.steps >= ENOUGH_STEPS:
                self._look_into(loop, checker, loop.last)

    def dropped(self, optimizer: Any) -> None:
        """A GradScaler dropped an update."""
        checker = self._checkers.get(optimizer) if isinstance(optimizer, Optimizer) else None
        if checker is not None:
            checker.dropped()

    def finish(self) -> None:
        """The program ends: tell what was waiting for more steps."""
        if self._budget.left_out:
            made, all_of_them = self._budget.made, self._budget.made + self._budget.left_out
            sentence = (
                f"silent problems were looked for in {made} of {all_of_them} trainings: "
                f"more would have taken over {_SHARE:.0%} of the run's time"
            )
            self._watch.ledger.say_at_end("looked_at", sentence)
        for gone in self._gone:
            gone.ended()
            gone.close()
        for optimizer, checker in list(self._checkers.items()):
            loop = self._watch.optimizers.loop_of(optimizer)
            if checker is not None and loop is not None and loop.log.recent:
                if checker.recorder is not None:
                    self._tell_of_loads(loop, checker)
                    if (model := checker.model()) is not None:
                        checker.recorder.loaded(idle_average=self.averages.idle(model))
                checker.ended()
                checker.close()
                if checker.suspects:
                    last = loop.log.recent[-1]
                    self._look_into(loop, checker, Reading(step=last.step, loss=last.loss, grad_norm=last.grad_norm))

    def _checker(self, loop: OptimizerLoop) -> SampledChecker | None:
        optimizer = loop.optimizer
        if optimizer not in self._checkers:
            with self._budget:
                self._checkers[optimizer] = self._new(loop) if self._watch.alone else None
        return self._checkers[optimizer]

    def _new(self, loop: OptimizerLoop) -> SampledChecker | None:
        own = {id(parameter) for parameter in loop.parameters}
        roots = [root for root in self._watch.models.roots() if any(id(p) in own for p in root.parameters())]
        called = {id(call.module): call.module for call in self._watch.models.calls}
        if len(roots) > 1 and len(called) == 1:  # copies of the model that share its parameters are not called
            roots = [root for root in roots if id(root) in called]
        if len(roots) != 1 or not (loop.optimizer in self._admitted or self._budget.begin()):
            return None
        model, optimizer = roots[0], loop.optimizer
        self._admitted.add(optimizer)
        others = self._watch.optimizers.other_trainers(model, optimizer)
        known = [(other, checker) for other in others if (checker := self._checkers.get(other)) is not None]
        for other, checker in known:
            if checker.samples:  # what another optimizer moves, and when, is not seen at this one's updates
                self.leave(other)
                del self._checkers[other]
        probed = not any(not checker.samples for _, checker in known)
        copies = [root for root in self._watch.models.all.roots(loop.parameters) if root is not model]
        first, self._first_look = self._first_look, None
        graph = first[1] if first is not None and first[0]() is model else None
        checker = SampledChecker(
            loop.log, self._watch.barrier, model, [optimizer], sampled=not others, probed=probed, copies=copies,
            graph=graph,
        )  # fmt: skip
        self._ends = [each for each in self._ends if each() is not None]
        self._ends.append(weakref.ref(optimizer, lambda _: self._dropped(checker)))
        return checker

    def _look_into(self, loop: OptimizerLoop, checker: SampledChecker, reading: Reading) -> None:
        """Ask about what was warned of, once, and as if nothing had happened."""
        watch, slices = self._watch, self._watch.slices
        depth = {"auto": "full", "origin": "origin"}.get(watch.settings.diagnose)
        kept = (
            slices.loop_passes
            and len(slices.loop_passes) == len(slices.reached)
            and 1 + len(slices.before) >= ENOUGH_STEPS
        )
        if not kept:
            return  # more steps come
        findings, checker.suspects = checker.suspects, []
        if depth is None or self._asked >= MOST or (self._tried >= MOST and not self._budget.admits()):
            return
        self._tried += 1
        watch.busy = True
        try:
            with watch.barrier("diagnosis", None):
                replayable = RerunnableParts(watch, loop, reading, watch.state_of(loop), "silent").replayable(
                    slices.loop_passes
                )
                answer = None
                try:
                    with watch.examiner.in_time(loop):
                        answer = look_into(replayable, findings, depth=depth) if _can_run(replayable) else None
                finally:
                    replayable.release()
                if answer is not None:
                    self._asked += 1
                    loop.log.enter_silent(reading.step, answer[1], answer[0])
                    loop.log.announce()
        finally:
            watch.busy = False


def _can_run(replayable: LoopStep) -> bool:
    """Whether the loop's lines can be run again without an effect on anything but what is restored."""
    if any(loop_pass.overwritten for loop_pass in replayable.loop_passes):
        return False
    try:
        with replayable.examining():
            replayable.restore()
            for batch in replayable.batches:
                with replayable.supervised(batch.loop_pass.noted()):
                    replayable.forward(batch)
    except HasEffect:
        return False
    return not replayable.forward_only
