"""Guard: owns one training step. What happens around it is the engine's; this is the door a user goes through."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .engine import setup
from .engine.program import TheirFault
from .engine.tape import pristine
from .errors import ClosedError, SteadyError
from .policy import Policy
from .records import Finding, Incident, Outcome
from .start import start_engine

LossFn = Callable[[nn.Module, Any], Any]


class Guard:
    """A training step that cannot be poisoned.

    Args:
        model: the module being trained (compiled ones too).
        optimizer: a torch optimizer, or several. Made with `fused=True` it can refuse an update on the device.
        loss_fn: `loss_fn(model, batch)` returns a scalar, a mapping of named terms with "loss", or None to skip.
        max_grad_norm: clip by global norm; None measures and does not clip.
        scheduler: a learning-rate scheduler; it advances on landed updates only.
        run_dir: where the journal goes; None keeps it in memory.
        policy: "observe", "balanced", "ultra_conservative", or a Policy.
        precision: "fp32", "bf16" or "fp16"; the guard enters autocast and, for fp16, scales the loss.
        scaler: your own GradScaler instead.
        accumulate: micro-batches per update.
        ema: anything with `update_parameters(model)` or `update()`, or a callable; advances on landed updates only.
        clip: "exact" (bit-identical to torch's clip) or "folded" (inside the fused optimizer, cheaper).
        settle: "auto", "late" (one step late; needs a fused optimizer) or "now" (one host read a step).
        snapshots: "auto", "host", "device" or "off": where the ring of last good states lives.
        checkpoint_every: steps between checkpoints in `run_dir/snapshots`; None writes none.
        resume: continue from the last good checkpoint in `run_dir`, if there is one.
        diagnose: "auto" (the first incidents of a kind, on the spot), "origin" (without trying remedies), or "off".
        capsule: what `steady replay` needs of the first incident of each kind, in run_dir: "keep" (the state and the
            batches, as they are), "redact" (of batches only shapes and dtypes), or "off".
        capsule_bytes: the most a capsule may take; past it weights are left out.
        batch_key: `batch_key(batch)` names a batch in the journal; by default batches are counted.
        extra_state: name -> (take, put) for state the guard cannot see, such as your own generator.
        notify: told of every incident, from a thread of its own: an http(s) URL that gets a POST, a command that gets
            the incident as JSON on standard input, or a function that gets it as a dictionary. A run that is open in
            Weights & Biases, Trackio or MLflow is told too; False tells nobody.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFn,
        *,
        max_grad_norm: float | None = None,
        scheduler: Any = None,
        run_dir: Any = None,
        policy: str | Policy = "balanced",
        precision: str = "fp32",
        scaler: Any = None,
        accumulate: int = 1,
        ema: Any = None,
        clip: str = "exact",
        settle: str = "auto",
        snapshots: str = "auto",
        checkpoint_every: int | None = None,
        keep_checkpoints: int = 3,
        resume: bool = False,
        diagnose: str = "auto",
        capsule: str = "keep",
        capsule_bytes: int = 2 << 30,
        batch_key: Callable[[Any], str] | None = None,
        extra_state: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] | None = None,
        notify: Any = None,
    ) -> None:
        setup.check_arguments(
            model=model, loss_fn=loss_fn, max_grad_norm=max_grad_norm, scheduler=scheduler, precision=precision,
            scaler=scaler, accumulate=accumulate, clip=clip, settle=settle, snapshots=snapshots,
            checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints, run_dir=run_dir, diagnose=diagnose,
            capsule=capsule, capsule_bytes=capsule_bytes,
        )  # fmt: skip
        self.policy = Policy.named(policy)
        self.model = model
        self.optimizers = setup.as_optimizers(optimizer)
        self.scheduler = scheduler
        self._engine = engine = start_engine(
            model, self.optimizers, loss_fn, self.policy, run_dir=run_dir, max_grad_norm=max_grad_norm,
            scheduler=scheduler, scaler=scaler, ema=ema, precision=precision, accumulate=accumulate, clip=clip,
            settle=settle, snapshots=snapshots, checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints,
            resume=resume, diagnose=diagnose, capsule=capsule, capsule_bytes=capsule_bytes, extra_state=extra_state,
            notify=notify,
        )  # fmt: skip
        engine.settle_for_readers = self.settle
        self._books = engine.books
        self._name_of = setup.batch_namer(batch_key, engine.shield)
        self._closed = self._inside = False
        setup.claim(self.optimizers, weakref.ref(self))
        setup.settle_before_others_look(model, self.optimizers, weakref.ref(self))
        engine.look_around()

    # -- what a user calls

    def step(self, batch: Any) -> Outcome:
        """Forward, backward, check, clip, optimizer, schedule, zero_grad for one (micro-)batch.

        Raises what your own code raises, and TrainingHalted when the policy gives up; never an error of its own.
        """
        if self._closed:
            raise ClosedError("This guard is closed, so the batch was not trained on. Make a new Guard to go on.")
        engine = self._engine
        if engine.halt is not None:
            raise engine.halted()
        key = self._name_of(batch, engine.batches_seen)
        engine.batches_seen += 1
        self._inside = True
        try:
            if engine.fallback is not None:
                return engine.fallback.step(batch, engine.step)
            return self._guarded_step(batch, key)
        except TheirFault as fault:
            engine.abandon_window()
            raised = engine.council.leaving(fault.original)
            raise raised from (fault.original.__cause__ if raised is fault.original else fault.original)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            engine.abandon_window()
            raise
        finally:
            self._inside = False

    def settle(self) -> None:
        """Wait for the last step's answer and act on it. Called for you before a checkpoint or an evaluation."""
        if not self._inside:
            self._inside = True
            try:
                self._engine.settle()
            except TheirFault as fault:
                raise fault.original from None
            except SteadyError:
                raise
            except Exception as fault:
                self._engine.stand_down(fault)
            finally:
                self._inside = False

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        self.settle()
        return list(self._books.incidents)

    @property
    def vitals(self) -> list[Finding]:
        """Silent trouble found by the sampled checks: lost updates, dead gradients and the like."""
        self.settle()
        return list(self._books.vitals)

    @property
    def step_number(self) -> int:
        """How many updates have been attempted."""
        return self._engine.step

    @property
    def batches_seen(self) -> int:
        """How many batches were given to `step`; after a resume, how many to pass over in the data."""
        return self._engine.batches_seen

    def summary(self) -> dict[str, Any]:
        """Steps, applied, skipped, rolled back, success rate, first and last bad step, and what is in force."""
        self.settle()
        return {
            **self._books.summary(),
            "halted": self._engine.halt is not None,
            "standing_down": self._engine.fallback is not None,
            "settles": "late" if self._engine.late() else "now",
        }

    def close(self) -> None:
        """Settle what is pending and close the journal. Safe to call twice."""
        if self._closed:
            return
        try:
            self.settle()
        finally:
            self._closed = True
            self._engine.council.closing(self._engine.batches_seen)
            setup.release(self.optimizers)
            self._engine.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- one step

    def _guarded_step(self, batch: Any, key: str) -> Outcome:
        engine = self._engine
        engine.begin()
        kept = batch
        try:
            late = engine.late()
            if engine.pending is not None and not late:
                # The optimizer was fused when that step was committed and is so no longer.
                engine.settle_pending(engine.window.fed)
            if not len(engine.window):
                engine.keep_state()
            kept = pristine(batch, clone=engine.program.writes_batches)
            engine.recovery.tape(engine.step, kept, key)
            outcome = engine.feed(kept, key, late=late, original=batch)
            engine.note_mode()
        except TheirFault as fault:
            engine.explain_crash(fault.original, kept, key)
            raise
        except SteadyError:
            raise
        except Exception as fault:
            plain = engine.stand_down(fault)
            return plain.committed(engine.step - 1) if engine.landed else plain.step(kept, engine.step)
        if engine.halt is not None:
            raise engine.halted()
        return outcome
