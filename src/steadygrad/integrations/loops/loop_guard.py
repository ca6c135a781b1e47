"""LoopGuard: the engine behind a loop that other code owns and that can be run again.

A framework runs forward, backward, clipping, its optimizer and its schedule as it always did, and tells the guard
where it is by five calls: `begin`, `seen`, `before_clip`, `commit`, and `settle` before anyone looks at the weights.
Where an update is refused the guard runs the framework's own computation again through `loss_fn`, so diagnosis,
capsules and rollback work as they do behind `sg.Guard`. One host read a step.
"""

from __future__ import annotations

import functools
import gc
import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ...detect.gradient_norms import GradientProbe, Gradients, finite_gradients
from ...detect.loop.model_calls import ModeModules
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import tensors_in
from ...engine import validate
from ...engine.config import GuardConfig, GuardOptions
from ...engine.fault_barrier import boundary
from ...engine.state.batch_buffer import NOT_AGAIN
from ...engine.state.forward_state import Entry
from ...engine.state.training_state import bad_state
from ...engine.step.step_row import Row
from ...records import Finding, Incident, Outcome
from ..build import build_loop
from ..guard import check_model
from .loader_samples import LoaderSamples
from .patch_barrier import barred
from .repeatable_model_calls import NOT_HEARD

_CALLED_SO = re.compile(r"(?<![A-Z])EMA|Ema(?![a-z])|MovingAverage|WeightAverag")
AVERAGES = "a moving average that the loop updates by itself is not held back after a refused update"


def has_copy(model: nn.Module) -> bool:
    """Whether the process holds what may be an average of these weights: an `AveragedModel`, another module of this
    kind, or an object that is called so. Looks at every object."""
    own = {id(part) for part in model.modules()}
    for each in gc.get_objects():
        kind = type(each)
        if (kind is type(model) or issubclass(kind, AveragedModel)) and id(each) not in own:
            return True
        if str(kind.__module__).partition(".")[0] != "steadygrad" and _CALLED_SO.search(str(kind.__name__)):
            return True
    return False


class LoopGuard:
    """A guard that is informed of each step instead of making it.

    Args:
        model: the module whose forward the loop calls.
        optimizers: the torch optimizer, or all that step together.
        loss_fn: `loss_fn(model, batch)` runs one micro-batch as the loop runs it, given what `seen` was given, and
            returns its loss, or a mapping of named terms with "loss". Called only to run a batch again.
        accumulate: what the loop divides a micro-batch's loss by before backward. May be changed between windows.
        max_grad_norm: what the loop clips to. The loop clips; this is for batches that are run again.
        scheduler, scaler: the loop's own; it goes on stepping the schedule itself, where `landed` is true.
        samples: what its loaders have drawn, where they were listened to before; by default from now on.

    The other options are those of `sg.Guard`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Any,
        loss_fn: Callable[[nn.Module, Any], Any],
        *,
        precision_shown: str = "the loop's own",
        samples: LoaderSamples | None = None,
        **options: Unpack[GuardOptions],
    ) -> None:
        check_model(model, loss_fn)
        self.config = config = GuardConfig.of(options, settle="now", outside=True, precision_shown=precision_shown)
        self.policy = config.policy
        self.model = model
        self.optimizers = validate.as_optimizers(optimizers, monitor=not self.policy.acts)
        self._engine = build_loop(model, self.optimizers, loss_fn, config)
        self._name_of = validate.batch_namer(config.batch_key, self._engine.barrier)
        self._samples = samples
        if config.batch_key is None:
            self._samples = samples or LoaderSamples(self.not_named)
            self._name_of = self._by_samples
        self._entry: Entry | None = None
        self._measured: tuple[Gradients | None, Row] | None = None
        self._closed = self._broken = False
        self._commit = barred(self._judged, self.failed, self.may_update)
        self._final_state, self._looked_after = "not checked", -1
        self.landed = True
        """Whether the last commit's update was applied. The owner of the loop steps its schedule only then."""
        self.outcome: Outcome | None = None
        """The last commit's outcome."""
        self.busy = False
        """True while the guard itself runs forward, backward or an optimizer; hooks of an integration look away."""
        validate.claim(self.optimizers, weakref.ref(self))
        self._engine.parts.checker.inspect_setup()
        self._averages_told = False

    # -- what an integration calls, in this order

    @property
    def accumulate(self) -> int:
        return self._engine.program.accumulate

    @accumulate.setter
    def accumulate(self, divisor: int) -> None:
        self._engine.program.accumulate = divisor

    def preserve(self, *objects: Any) -> None:
        """Attributes of these objects are as before after every replay: a trainer, a module of a framework."""
        self._engine.preserve(objects)

    def not_named(self, fault: Exception) -> None:
        """A fault of ours at a loader of the program: batches are counted then."""
        self._engine.barrier.note("batches", fault)

    def batch_moved(self, before: Any, after: Any) -> None:
        """The loop made `after` of a batch of its loader when it moved it to a device. Does not sync."""
        if self._samples is not None:
            with self._engine.barrier("batches", None):
                self._samples.moved(before, after)

    def clips_to(self, max_grad_norm: float | None) -> None:
        """What the loop clips to, where that is known only once it does."""
        self._engine.clips_to(max_grad_norm)

    @boundary
    def begin(self, batch: Any = None) -> None:
        """Before a micro-batch's forward. Does not sync, but for a snapshot that is due."""
        if self._idle():
            return
        self._measured = None
        self._engine.begin()
        if not len(self._engine.window):
            self.busy = True
            try:
                self._engine.keep_state()
            finally:
                self.busy = False
        self._entry = self._engine.enter()

    def forward_not_heard(self) -> None:
        """The forward of this micro-batch ran before `begin`."""
        if ModeModules(self.model):
            self._engine.log.show_once(NOT_HEARD)

    @boundary
    def seen(self, batch: Any, terms: Mapping[str, Tensor], key: str | None = None) -> None:
        """After a micro-batch's backward, run by the loop: what `loss_fn` needs to run it again, and its loss terms.

        A batch of None says that only the loop could run it: then there is no diagnosis, and a rollback does not run
        the batches since its snapshot again.
        """
        if self._idle() or self._entry is None:
            return
        entry, self._entry = self._entry, None
        engine = self._engine
        name = key if key is not None else self._name_of(batch, engine.batches_seen)
        engine.batches_seen += 1
        kept = NOT_AGAIN if batch is None else engine.program.keep(batch)
        engine.content = engine.program.refilled.keep(tensors_in(kept))
        engine.recovery.batch_buffer(engine.step, kept, name, entry.rng, engine.content)
        engine.leave(kept, name, {k: value.detach().reshape(()) for k, value in terms.items()}, entry)
        engine.parts.mode.note()

    @boundary
    def left_out(self, made: Any, batch: Any = None) -> None:
        """Instead of `seen`: the loop went on without a backward. `made` is the loss, or what the model made of the
        batch, or None where only running it again can show that; not finite, it is an incident. Reads the device."""
        if self._idle() or self._entry is None:
            return
        entry, self._entry = self._entry, None
        engine, self.busy = self._engine, True
        try:
            key = self._name_of(batch, engine.batches_seen)
            engine.batches_seen += 1
            if made is None and batch is not None:
                after = engine.forward.take()
                made = engine.own_skips.run_again(batch, entry, after)
                engine.forward.release(after)
            engine.own_skips.note(made, key, batch)
        finally:
            self.busy = False

    @boundary
    def before_clip(self) -> None:
        """Just before the loop clips: measure the gradients as they are. Does not sync."""
        if not self._idle() and len(self._engine.window):
            self._measured = self._engine.measure()

    def commit(self, update: Callable[[], Any]) -> bool:
        """Where the loop steps its optimizer: calls `update` if it may be applied, else leaves no trace of the window.

        One host read. Raises what `update` raises, and TrainingHalted when the policy gives up.
        """
        if self._closed or self.busy:
            update()
            return True
        self._commit(update)
        if self._engine.engine.halt is not None:
            raise self._engine.engine.halted()
        return self.landed

    def _judged(self, update: Callable[[], Any]) -> None:
        """Make this update if it may be applied; `barred` sees to it that it is made once at most."""
        engine = self._engine
        loss_seen = len(engine.window) > 0
        if not loss_seen:
            self._see_gradients()
        if self._measured is None:
            self.before_clip()
        measured, self._measured = self._measured, None
        if self._broken or measured is None or not len(engine.window):
            if self.may_update():
                update()
            return

        def run() -> Any:
            # It may run hooks of an integration, which must find the guard listening, not busy.
            self.busy = False
            try:
                return update()
            finally:
                self.busy = True

        self.busy = True
        try:
            self.outcome = engine.commit_outside(*measured, run, loss_seen=loss_seen)
        finally:
            self.busy = False
        self.landed = self.outcome.applied_flag
        reading = self.outcome.reading
        if not self.landed and not self._averages_told and not (reading is not None and reading.scale_to_blame):
            self._averages_told = True
            with engine.barrier("notify", None):
                if has_copy(self.model):
                    engine.log.show_once(AVERAGES)

    def _see_gradients(self) -> None:
        """An update comes and no backward was heard, but there may be gradients: judge these, without a loss."""
        parameters = self._engine.program.parameters
        if self._idle() or all(parameter.grad is None for parameter in parameters):
            return
        if self._entry is None:
            self.begin()
            self.forward_not_heard()
        self.seen(None, {"loss": torch.zeros(())})

    def may_update(self, *_: Any, **__: Any) -> bool:
        """All that is checked where the guard itself has failed: whether the gradients are finite."""
        gradients = GradientProbe(self._engine.program.parameters).measure()
        self.landed = gradients is None or finite_gradients(gradients)
        return self.landed

    def failed(self, fault: Exception) -> None:
        """The guard itself failed: from here on only finiteness is checked, loudly. Several ranks stop together."""
        self._broken = self.landed = True
        self._engine.barrier.note("guard", fault)
        self._engine.consensus.broken(fault)

    def settle(self) -> None:
        """Before someone looks at the weights. Every commit was judged at once, so there is nothing to wait for."""

    def checkpoint_saved(self, path: Any) -> None:
        """The owner of the loop has written this checkpoint: `steady verify` looks for it there."""
        with self._engine.barrier("checkpoints", None):
            place = str(path) if "://" in str(path) else str(Path(path).absolute())
            self._engine.log.journal.event_later("checkpoint_saved", path=place)

    @boundary
    def training_ended(self) -> None:
        """Where the loop says that it is through: look at the weights now. One host read. It may begin again."""
        if not self._closed:
            self._look_at_the_end()
            self._engine.log.journal.ended()

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        return list(self._engine.log.incidents)

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks."""
        return list(self._engine.log.vitals)

    @property
    def step_number(self) -> int:
        """How many updates have been attempted."""
        return self._engine.step

    @property
    def scaler(self) -> Any:
        """The loop's GradScaler, if it has one that is switched on."""
        return self._engine.program.scaler

    def poisoned(self) -> str:
        """The first few weights, moments or buffers that are not finite, in words; else empty. Reads the device."""
        bad = bad_state(self._engine.parts.state)
        names = [str(name) for found in bad.values() for name in (found if isinstance(found, tuple | list) else ())]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def summary(self) -> dict[str, Any]:
        """Steps, applied, skipped, rolled back, success rate, first and last bad step, and what is in force."""
        return {
            **self._engine.log.summary(),
            "halted": self._engine.engine.halt is not None,
            "standing_down": self._broken,
            "settles": "now",
            "final_state": self._final_state,
        }

    def close(self) -> None:
        """Let go of the optimizers and close the journal. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._engine.diagnoses.finish()
            if self._engine.log.ledger.steps != self._looked_after:
                self._look_at_the_end()
            release = functools.partial(validate.release, self.optimizers)
            listened = (self._samples.close,) if self._samples is not None else ()
            for let_go in (*listened, release, self._engine.release, self._engine.log.close):
                with self._engine.barrier("closing", None):
                    let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- small things

    def _by_samples(self, batch: Any, count: int) -> str:
        with self._engine.barrier("batches", str(count)) as answer:
            assert self._samples is not None
            answer.value = self._samples.name(batch, count)
        return answer.value

    def _look_at_the_end(self) -> None:
        self._looked_after = self._engine.log.ledger.steps
        with self._engine.barrier("final_state", None):
            self._final_state = self._engine.recovery.final_state()
            self._engine.log.journal.event("final_state", state=self._final_state)

    def _idle(self) -> bool:
        return self._closed or self._broken or self.busy
