"""LoopGuard: the engine behind a loop that somebody else owns and that can be run again.

A framework runs forward, backward, clipping, its optimizer and its schedule as it always did, and tells the guard
where it is by five calls: `begin`, `seen`, `before_clip`, `commit`, and `settle` before anybody looks at the weights.
Where an update is refused the guard runs the framework's own computation again through `loss_fn`, so diagnosis,
capsules and rollback work as they do behind `sg.Guard`. One host read a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from torch import Tensor, nn

from ..config import GuardConfig, GuardOptions
from ..detect.gradients import GradientProbe, Gradients, finite_gradients
from ..engine import setup
from ..engine.forward_state import Entry
from ..engine.program import TheirFault
from ..engine.readout import Row
from ..engine.tape import NOT_AGAIN, pristine, versions_of
from ..engine.training_state import bad_state
from ..errors import SteadyError
from ..guard import check_model
from ..records import Finding, Incident, Outcome
from ..start import start_loop


class LoopGuard:
    """A guard that is told of each step instead of making it.

    Args:
        model: the module whose forward the loop calls.
        optimizers: the torch optimizer, or all that step together.
        loss_fn: `loss_fn(model, batch)` runs one micro-batch as the loop runs it, given what `seen` was given, and
            returns its loss, or a mapping of named terms with "loss". Called only to run a batch again.
        accumulate: what the loop divides a micro-batch's loss by before backward. May be changed between windows.
        max_grad_norm: what the loop clips to. The loop clips; this is for batches that are run again.
        scheduler, scaler: the loop's own; it goes on stepping the schedule itself, where `landed` is true.

    The other options are those of `sg.Guard`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Any,
        loss_fn: Callable[[nn.Module, Any], Any],
        *,
        precision_shown: str = "the loop's own",
        **options: Unpack[GuardOptions],
    ) -> None:
        check_model(model, loss_fn)
        self.config = config = GuardConfig.of(options, settle="now", outside=True, precision_shown=precision_shown)
        self.policy = config.policy
        self.model = model
        self.optimizers = setup.as_optimizers(optimizers, monitor=not self.policy.acts)
        self._engine = start_loop(model, self.optimizers, loss_fn, config)
        self._name_of = setup.batch_namer(config.batch_key, self._engine.shield)
        self._entry: Entry | None = None
        self._versions: tuple[int, ...] = ()
        self._measured: tuple[Gradients | None, Row] | None = None
        self._closed = self._broken = False
        self._final_state = "not checked"
        self.landed = True
        """Whether the last commit's update landed. The owner of the loop steps its schedule only then."""
        self.outcome: Outcome | None = None
        """The last commit's outcome."""
        self.busy = False
        """True while the guard itself runs forward, backward or an optimizer; hooks of an integration look away."""
        setup.claim(self.optimizers, weakref.ref(self))
        self._engine.look_around()

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

    def clips_to(self, max_grad_norm: float | None) -> None:
        """What the loop clips to, where that is known only once it does."""
        self._engine.clips_to(max_grad_norm)

    def begin(self, batch: Any = None) -> None:
        """Before a micro-batch's forward. Does not sync, but for a snapshot that is due."""
        if self._idle():
            return
        self._measured = None
        with self._watching():
            self._engine.begin()
            if not len(self._engine.window):
                self.busy = True
                try:
                    self._engine.keep_state()
                finally:
                    self.busy = False
            self._versions = versions_of(batch)
            self._entry = self._engine.enter()

    def seen(self, batch: Any, terms: Mapping[str, Tensor], key: str | None = None) -> None:
        """After a micro-batch's backward, run by the loop: what `loss_fn` needs to run it again, and its loss terms.

        A batch of None says that only the loop could run it: then there is no diagnosis, and a rollback does not run
        the batches since its snapshot again.
        """
        if self._idle() or self._entry is None:
            return
        entry, self._entry = self._entry, None
        with self._watching():
            engine = self._engine
            name = key if key is not None else self._name_of(batch, engine.batches_seen)
            engine.batches_seen += 1
            kept = NOT_AGAIN if batch is None else pristine(batch)
            engine.recovery.tape(engine.step, kept, name, entry.rng)
            engine.leave(kept, name, {k: value.detach().reshape(()) for k, value in terms.items()}, entry)
            engine.note_mode()

    def before_clip(self) -> None:
        """Just before the loop clips: measure the gradients as they are. Does not sync."""
        if not self._idle() and len(self._engine.window):
            with self._watching():
                self._measured = self._engine.measure()

    def commit(self, update: Callable[[], Any]) -> bool:
        """Where the loop steps its optimizer: calls `update` if it may land, else leaves no trace of the window.

        One host read. Raises what `update` raises, and TrainingHalted when the policy gives up.
        """
        engine = self._engine
        if self._closed or self.busy:
            update()
            return True
        if self._broken or not len(engine.window):
            return self._bare_commit(update)
        if self._measured is None:
            self.before_clip()
        measured, self._measured = self._measured, None
        if measured is None:
            return self._bare_commit(update)
        self.busy = True
        try:
            self.outcome = engine.commit_outside(*measured, self._once(update))
            self.landed = self.outcome.applied_flag
            reading = self.outcome.reading
            if not self.landed and not (reading is not None and reading.scale_to_blame):
                engine.books.show_once(
                    "a moving average that the loop updates by itself is not held back after a refused update"
                )
        except TheirFault as fault:
            raise fault.original from fault.original.__cause__
        except SteadyError:
            raise
        except Exception as fault:
            self._break(fault)
            if engine.committed:
                self.landed = True
                return True
            return self._bare_commit(update)
        finally:
            self.busy = False
        if engine.engine.halt is not None:
            raise engine.engine.halted()
        return self.landed

    def settle(self) -> None:
        """Before somebody looks at the weights. Every commit was judged at once, so there is nothing to wait for."""

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        return list(self._engine.books.incidents)

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks."""
        return list(self._engine.books.vitals)

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
            **self._engine.books.summary(),
            "halted": self._engine.engine.halt is not None,
            "standing_down": self._broken,
            "settles": "now",
            "final_state": self._final_state,
        }

    def close(self) -> None:
        """Let go of the optimizers and close the journal. Safe to call twice."""
        if not self._closed:
            self._closed = True
            with self._engine.shield("final_state", None):
                self._final_state = self._engine.recovery.final_state()
            setup.release(self.optimizers)
            self._engine.release()
            self._engine.books.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- small things

    def _idle(self) -> bool:
        return self._closed or self._broken or self.busy

    def _once(self, update: Callable[[], Any]) -> Callable[[], Any]:
        """The loop's own update may run hooks of an integration, which must find the guard listening, not busy."""

        def run() -> Any:
            self.busy = False
            try:
                return update()
            finally:
                self.busy = True

        return run

    def _watching(self) -> _Watching:
        return _Watching(self)

    def _break(self, fault: Exception) -> None:
        """The guard itself failed: from here on only finiteness is checked, loudly. Several ranks stop together."""
        self._broken = True
        self._engine.shield.note("guard", fault)
        self._engine.council.broken(fault)

    def _bare_commit(self, update: Callable[[], Any]) -> bool:
        gradients = GradientProbe(self._engine.program.parameters).measure()
        self.landed = gradients is None or finite_gradients(gradients)
        if self.landed:
            update()
        return self.landed


class _Watching:
    """Around the guard's own work outside of commit: a fault there makes it stand down, never stops the loop."""

    __slots__ = ("_guard",)

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, SteadyError):
            return False
        self._guard._break(error)
        return True
