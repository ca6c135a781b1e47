"""Trainings of one program that run at the same time: in threads, or in coroutines and generators that take turns.

What a `ProcessLoop` knows of a loop (its calls, losses, lines, past) is known of one flow of the program, its home. A
training that runs between the steps of another is judged by its own gradients, with its own forward state, as at
`sg.attach(optimizer, model=model)`: nothing of the one is charged to the other. Its incidents are not diagnosed.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.quiet_hook import QuietHook
from ...engine.record.run_log import RunLog
from ...engine.state.forward_state import Entry, ForwardState
from ...engine.state.rng import put_rng
from ...engine.state.training_state import TrainingState, bad_state
from ...engine.step.trained_parameters import parameters_of
from ...policy import Capabilities
from ...records import Action, Decision, Reading
from ...records.errors import SteadyError
from ..loops.patch_barrier import closure_in
from ..optimizer.optimizer_loop import OptimizerLoop

if TYPE_CHECKING:
    from .process_loop import ProcessLoop

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_MAX_FLOWS = 64
_MAX_STEPS = 4096
_NOTICE = (
    "several trainings of this program run at the same time: all but one are judged by their gradients alone, and "
    "their incidents are not diagnosed"
)


class SeparateTrainings:
    """Which flow of the program is at home in a `ProcessLoop`, and the trainings that are not."""

    def __init__(self, watch: ProcessLoop) -> None:
        self._watch = watch
        self._home: list[tuple[threading.Thread, int, int]] = []
        self._stepped: deque[int] = deque(maxlen=_MAX_FLOWS)
        self._of: weakref.WeakKeyDictionary[Optimizer, SeparateTraining] = weakref.WeakKeyDictionary()
        self.steps: deque[int] = deque(maxlen=_MAX_STEPS)
        """The numbers of their updates, as far as a rollback at home may ask for them."""
        self._making: set[int] = set()
        self._lock = threading.RLock()

    @property
    def here(self) -> bool:
        """Whether the code that runs now is of another training than the one at home. Host work only: in a program
        with one optimizer and one thread, a comparison. Several ranks have one flow each, for all decide alike."""
        if not self._home:
            return False
        home = self._home[0]
        if threading.get_ident() != home[1]:
            return self._watch.alone and self._in_other_thread(home[0])
        return self._watch.optimizers.several and self._watch.alone and self._in_other_flow(home[2])

    @property
    def _takes_turns(self) -> bool:
        return self._watch.optimizers.several and self._watch.alone

    def begins(self) -> bool:
        """The same for a part of a training step: the first of all is at home."""
        if not self._home:
            with self._lock:
                self._home = self._home or [_here()]
        return self.here

    def _in_other_thread(self, home: threading.Thread) -> bool:
        if not _of_program():
            return False  # autograd runs hooks, and forwards that were not kept, in its own threads
        current = threading.current_thread()
        if any(training.thread() is current for training in list(self._of.values())):
            return True  # as long as its training lasts: it may be in the middle of a step when the one at home ends
        if home.is_alive() and not self._has_ended():
            return True
        self._home[0] = _here()
        return False

    def _has_ended(self) -> bool:
        """Whether the program has dropped the training at home: the next one takes its place."""
        return self._watch.step > 0 and not self._watch.models.heard and not self._watch.loops

    def _in_other_flow(self, home: int) -> bool:
        flow = _flow()
        if flow == home or flow not in self._stepped:
            return False  # a flow without an update is a part of another's loop
        if self._watch.models.heard:
            return True  # between a model's call and its update
        self._home[0] = (*self._home[0][:2], flow)
        return False

    def model_called(self, module: nn.Module) -> None:
        """A model is called that is not trained at home."""
        optimizer = self._watch.optimizers.trainer_of(module)
        if optimizer is not None and optimizer not in self._of:
            self._separate(optimizer).before_forward(module)

    def training_of(self, optimizer: Optimizer) -> SeparateTraining | None:
        """The training whose update is due now; None where it is the one at home."""
        elsewhere = optimizer in self._of or self.begins()
        if not elsewhere and self._takes_turns and self._home[0][1] == threading.get_ident():
            flow = _flow()
            elsewhere = flow != self._home[0][2] and self._watch.models.heard and not self._was_called(optimizer)
            self._home[0] = self._home[0] if elsewhere else (*self._home[0][:2], flow)
            if flow not in self._stepped:
                self._stepped.append(flow)
        return (self._of.get(optimizer) or self._separate(optimizer)) if elsewhere else None

    def _was_called(self, optimizer: Optimizer) -> bool:
        """Whether the step at home, which has begun, is one of this optimizer's."""
        own = {id(parameter) for parameter in parameters_of(optimizer)}
        modules = [call.module for call in self._watch.models.calls]
        return any(id(parameter) in own for module in modules for parameter in module.parameters())

    def update(self, training: SeparateTraining, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An update that is not made at home. A container's step calls its parts' steps, which are made with it."""
        thread = threading.get_ident()
        if thread in self._making:
            return original(*args, **kwargs)
        self._making.add(thread)
        try:
            number, self._watch.step = self._watch.step, self._watch.step + 1
            self.steps.append(number)
            return training.update(original, number, args, kwargs)
        finally:
            self._making.discard(thread)

    def _separate(self, optimizer: Optimizer) -> SeparateTraining:
        watch, own = self._watch, {id(parameter) for parameter in parameters_of(optimizer)}
        watch.ledger.tell("several_trainings", _NOTICE)
        with self._lock:
            loop = watch.loop_of(optimizer)
            roots = [root for root in watch.models.roots() if any(id(p) in own for p in root.parameters())]
            training = SeparateTraining(watch, loop, roots)
            loop.move_to(training)
            kept = {id(parameter) for each in watch.loops for parameter in each.parameters}
            watch.models.leave([root for root in roots if not any(id(p) in kept for p in root.parameters())])
            watch.sampled.leave(optimizer)
            self._of[optimizer] = training
        return training

    def close(self) -> None:
        """Leave no hook on a model."""
        for training in self._of.values():
            training.close()


def _here() -> tuple[threading.Thread, int, int]:
    return threading.current_thread(), threading.get_ident(), _flow()


def _flow() -> int:
    """The outermost coroutine or generator that runs in this thread; 0 where there is none."""
    frame, found = sys._getframe(1), 0
    while True:
        if frame.f_code.co_flags & _SUSPENDS:
            found = id(frame)
        if frame.f_back is None:
            return found
        frame = frame.f_back


def _of_program() -> bool:
    """Whether the thread that runs now was begun in Python."""
    ident = threading.get_ident()
    return any(each.ident == ident and type(each).__name__ != "_DummyThread" for each in threading.enumerate())


class SeparateTraining:
    """One optimizer's training that is not at home. Satisfies `SurroundingLoop`."""

    def __init__(self, watch: ProcessLoop, loop: OptimizerLoop, roots: Sequence[nn.Module]) -> None:
        self._watch, self.ranks = watch, watch.ranks
        self._loop = weakref.ref(loop)
        self.thread = weakref.ref(threading.current_thread())
        self._forward = ForwardState(roots)
        self._entry: Entry | None = None
        before, after = (QuietHook(call, self._failed) for call in (self.before_forward, self._after_forward))
        handles = [(root.register_forward_pre_hook(before), root.register_forward_hook(after)) for root in roots]
        self._handles = [handle for pair in handles for handle in pair]

    def close(self) -> None:
        """Leave no hook on its models."""
        for handle in self._handles:
            handle.remove()

    def _failed(self, fault: Exception) -> None:
        if isinstance(fault, SteadyError):
            raise fault
        self._watch.barrier.note("forward_state", fault)

    def before_forward(self, module: nn.Module, _inputs: Any = None) -> None:
        """The first training forward since the last update: take what it may move. Does not sync."""
        if not module.training or not torch.is_grad_enabled():
            return
        if self._entry is not None:
            self._forward.took_again()
            return
        self._forward.refresh()
        self._entry = self._forward.take()

    def _after_forward(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if module.training and torch.is_grad_enabled() and self._entry is not None:
            self._forward.notice()
            self._forward.left()

    def update(self, original: Callable[..., Any], number: int, args: Any, kwargs: Any) -> Any:
        """This training's `optimizer.step(...)`: judged, made or withheld, and looked at."""
        loop = self._loop()
        if loop is None:
            return original(*args, **kwargs)
        loop.refused = False
        closure = closure_in(args, kwargs)
        try:
            if closure is None:
                return loop.update(lambda: original(*args, **kwargs), number, None, None)
            rest, named = args[1:], {key: value for key, value in kwargs.items() if key != "closure"}
            return loop.update_with_closure(
                lambda run: original(run, *rest, **named), closure, number, lambda loss: (_number(loss), None)
            )
        finally:
            self._entry = None
            self._watch.followers.updated(loop.optimizer, refused=loop.refused)

    # -- what the optimizer's loop asks

    @property
    def alone(self) -> bool:
        return self._watch.alone

    def state_of(self, loop: OptimizerLoop) -> TrainingState:
        return TrainingState(
            parameters=loop.named_parameters(), optimizers=[loop.optimizer], forward=self._forward
        )  # fmt: skip

    def issued(self, loop: OptimizerLoop) -> None:
        """There is nothing to do meanwhile."""

    def agree(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        return reading

    def shown(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        return reading if loop.log is self._watch.ledger.first else replace(reading, norms=(), names=())

    def capabilities(self, loop: OptimizerLoop, reading: Reading) -> Capabilities:
        return Capabilities(lr=False, rollback=False, rerun=False)

    def withhold(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """Leave no trace of this training's forwards; what others drew meanwhile stays drawn."""
        if reading.scale_to_blame:
            return reading
        entry, self._entry = self._entry, None
        if entry is not None:
            rng = self._forward.rng_without(entry.place)
            self._forward.restore(entry)
            self._forward.forget_since(entry.place)
            put_rng(rng)
        return reading if reading.undone else replace(reading, **bad_state(self.state_of(loop)))

    def diagnose(self, loop: OptimizerLoop, reading: Reading, decision: Decision) -> None:
        """What runs between could be disturbed."""

    def roll_back(self, loop: OptimizerLoop, decision: Decision) -> Decision:
        decision = replace(decision, actions=(*decision.actions, Action.HALT))
        return loop.log.amend(decision, "no good state could be restored")

    def halting(self, loop: OptimizerLoop, step: int) -> None:
        """The weights stay as they are: no batch can be run again here."""

    def ended(self, log: RunLog, weights: dict[str, Tensor]) -> None:
        """The program has dropped the optimizer."""
        self._watch.ledger.dropped(log, weights)


def _number(loss: Any) -> Tensor | None:
    return loss.detach().reshape(()) if isinstance(loss, Tensor) and loss.numel() == 1 else None
