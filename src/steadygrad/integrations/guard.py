"""Guard: owns one training step. What happens around it is the engine's; this is the entry point a user calls."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Unpack

import torch
from torch import nn
from torch.optim import Optimizer

from ..detect.tensors.foreign_objects import isinstance
from ..detect.tensors.graph_capture import capturing
from ..engine import validate
from ..engine.config import GuardConfig, GuardOptions
from ..engine.distributed.collectives import OtherRankFailed
from ..engine.fault_barrier import UserCodeError, boundary, raise_again
from ..records import Finding, Incident, Outcome
from ..records.errors import ClosedError, SteadyError, UsageError
from .build import build_loop

LossFn = Callable[[nn.Module, Any], Any]


class Guard:
    """A training step that keeps NaN and Inf out of your weights.

        guard = sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0, run_dir="runs/demo")
        for batch in loader:
            outcome = guard.step(batch)

    Args:
        model: the module being trained (compiled ones too).
        optimizer: a torch optimizer, or several. Made with `fused=True` it can refuse an update on the device.
        loss_fn: `loss_fn(model, batch)` returns a scalar, a mapping of named terms with "loss", or None to skip.
        **options: see `GuardConfig`, which lists every option with its meaning.

    Returns:
        A guard, which is a GuardHandle. `step(batch)` returns an Outcome; leaving the `with` block closes the journal.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def loss_fn(model, batch):
        ...     return model(batch).pow(2).mean()
        >>> with sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0) as guard:
        ...     good = guard.step(torch.ones(8, 4))
        ...     bad = guard.step(torch.full((8, 4), float("nan")))
        >>> good.applied, bad.applied, bad.findings[0].detail
        (True, False, 'the loss is nan')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFn,
        **options: Unpack[GuardOptions],
    ) -> None:
        check_model(model, loss_fn)
        self.config = config = GuardConfig.of(options)
        self.policy = config.policy
        self.model = model
        self.optimizers = validate.as_optimizers(optimizer)
        validate.check_steps_alone(self.optimizers)
        self.scheduler = config.scheduler
        self._loop = loop = build_loop(model, self.optimizers, loss_fn, config)
        loop.settle_for_readers = self.settle
        self._log = loop.log
        self._name_of = None if config.batch_key is None else validate.batch_namer(config.batch_key, loop.barrier)
        self._closed = self._inside = False
        self._kept: Any = None
        """The batch of the step under way, as it was before loss_fn could write into it."""
        self._final_state = "not checked"
        validate.claim(self.optimizers, weakref.ref(self))
        self._hooks = validate.settle_before_others_look(model, self.optimizers, weakref.ref(self))
        loop.parts.checker.inspect_setup()

    # -- what a user calls

    def step(self, batch: Any) -> Outcome:
        """Forward, backward, check, clip, optimizer, schedule, zero_grad for one (micro-)batch.

        Raises what your own code raises, and TrainingHalted when the policy gives up; never its own error.
        """
        if self._closed:
            raise ClosedError("This guard is closed, so the batch was not trained on. Make a new Guard to go on.")
        loop = self._loop
        if loop.engine.halt is not None:
            raise loop.engine.halted()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with loop.barrier("guard", None):
                check_no_capture()
        loop.batches_seen += 1
        loop.committed, loop.terms, loop.program.began = False, None, False
        self._inside, self._kept = True, batch
        try:
            if loop.fallback is not None:
                return loop.fallback.step(batch, loop.step)
            try:
                return self._guarded_step(batch)
            except (UserCodeError, SteadyError) as error:
                if not isinstance(error, OtherRankFailed):
                    raise
                return loop.stand_down(error).left_out(loop.step - 1)
            except Exception as fault:
                refused = loop.refusing is not None
                plain = loop.stand_down(fault)
                if refused:
                    return plain.left_out(loop.step - 1)
                if loop.committed:
                    return plain.committed(loop.step - 1)
                return plain.step(self._kept, loop.step, loop.terms if loop.consensus.size > 1 else None)
        except UserCodeError as fault:
            loop.open_windows.raised()
            raised = loop.consensus.leaving(fault.original)
            if raised is fault.original:
                raise_again(raised)
            raise raised from fault.original
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            loop.open_windows.raised()
            raise
        finally:
            self._inside, self._kept, loop.program.answer = False, None, None

    @boundary
    def settle(self) -> None:
        """Wait for the last step's answer and act on it. Called for you before a checkpoint or an evaluation."""
        if not self._inside:
            self._inside = True
            try:
                self._loop.settle()
            finally:
                self._inside = False

    def failed(self, fault: Exception) -> None:
        """The guard itself failed outside of a step: go on as a plain loop that refuses non-finite updates."""
        self._loop.stand_down(fault)

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        self.settle()
        return list(self._log.incidents)

    @property
    def vitals(self) -> list[Finding]:
        """Silent problems found by the sampled checks: lost updates, dead gradients and the like."""
        self.settle()
        return list(self._log.vitals)

    @property
    def step_number(self) -> int:
        """How many updates have been attempted."""
        return self._loop.step

    @property
    def batches_seen(self) -> int:
        """How many batches were given to `step`; after a resume, how many to pass over in the data."""
        return self._loop.batches_seen

    def summary(self) -> dict[str, Any]:
        """Steps, applied, skipped, rolled back, success rate, first and last bad step, and what is in force."""
        self.settle()
        return {
            **self._log.summary(),
            "halted": self._loop.engine.halt is not None,
            "standing_down": self._loop.fallback is not None,
            "settles": "late" if self._loop.late() else "now",
            "final_state": self._final_state,
        }

    def close(self) -> None:
        """Settle what is pending and close the journal. Safe to call twice."""
        if self._closed:
            return
        loop, barrier = self._loop, self._loop.barrier
        try:
            self.settle()
            if waiting := len(loop.window):
                there = f"{waiting} of {loop.program.accumulate} micro-batches of an update were there"
                loop.log.show_once(f"{there} when the guard was closed; that update was not made")
            loop.diagnoses.finish()
            with barrier("final_state", None):
                self._final_state = loop.recovery.final_state()
                loop.log.journal.event("final_state", state=self._final_state)
        finally:
            self._closed = True
            with barrier("ranks", None):
                loop.consensus.closing(loop.batches_seen)
            release = functools.partial(validate.release, self.optimizers)
            for let_go in (release, *(hook.remove for hook in self._hooks), loop.release, loop.log.close):
                with barrier("closing", None):
                    let_go()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- one step

    def _guarded_step(self, batch: Any) -> Outcome:
        loop = self._loop
        loop.begin()
        key = str(loop.batches_seen - 1) if self._name_of is None else self._name_of(batch, loop.batches_seen - 1)
        try:
            late = loop.late()
            if loop.pending is not None and not late:
                # The optimizer was fused when that step was committed and is so no longer.
                loop.settle_pending()
            if not loop.window.batches:
                loop.keep_state()
            if loop.engine.halt is None:
                self._kept = kept = loop.program.keep(batch)
                outcome = loop.feed(kept, key, late=late, original=batch)
            if loop.pending is not None or loop.window.batches:
                loop.parts.mode.note()  # in case what is open must be run again under other modes
        except UserCodeError as fault:
            with loop.barrier("diagnosis", None):
                loop.open_windows.explain_crash(fault.original, self._kept, key)
            raise
        if loop.engine.halt is not None:
            raise loop.engine.halted()
        return outcome


def check_no_capture() -> None:
    """One clear sentence where a step would be recorded into a CUDA graph."""
    if capturing():
        raise UsageError(
            "guard.step(batch) was called while a CUDA graph is captured. It reads the device, which no graph can "
            "hold, so nothing was done. Call it outside of torch.cuda.graph, or capture the model alone with "
            "torch.cuda.make_graphed_callables."
        )


def check_model(model: Any, loss_fn: Any) -> None:
    """One clear sentence for a model or a loss function that cannot work."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    if not callable(loss_fn):
        raise UsageError(f"loss_fn must be a function loss_fn(model, batch), got {type(loss_fn).__name__}.")
