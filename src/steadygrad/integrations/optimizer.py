"""A loop that stays as it is, guarded at `optimizer.step()`: `sg.attach(optimizer, model=model)`.

A withheld update is not made at all: the optimizer's own `step` is not called, whatever optimizer it is. With the
model given, what its forward passes moved since the last update (running statistics, random numbers, counters) is
restored too. One host read a step.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import GuardConfig
from ..detect.gradients import Gradients
from ..engine import setup
from ..engine.clerk import AUDIT_EVERY, EARLY_FORWARDS, Clerk
from ..engine.forward_state import Entry, ForwardState
from ..engine.notify import Notifier
from ..engine.parameters import parameters_of
from ..engine.ranks_council import convene
from ..engine.rng import put_rng
from ..engine.shield import Shield
from ..engine.training_state import TrainingState, bad_state
from ..errors import SteadyError
from ..journal import Journal
from ..policy import Capabilities, Policy
from ..records import Action, Decision, Finding, Incident, Reading
from ..start import report_checkup
from .barrier import barred, undo_all
from .desk import Desk, names_of
from .patching import outside_of_compile, wrap_method
from .rhythm import Rhythm

_LIMITS = (
    "attached to an optimizer: the loss is not seen, so a divergence with finite values is not reported, incidents are "
    "not diagnosed, batches that the loop skips itself are not seen, and a moving average that the loop updates is not "
    "held back"
)
_NO_MODEL = "without model= running statistics and random numbers are not restored"


class OptimizerGuard:
    """What `sg.attach(optimizer, ...)` returns.

    Args:
        optimizers: one or several; each one's steps are judged on their own.
        model: lets the guard name parameters, restore what forward moved, and roll back poisoned weights.
        scheduler: held for one call after a refused step.
        scaler: your GradScaler, so that the steps it drops are seen.
        run_dir, policy, notify: as for Guard.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        model: nn.Module | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        run_dir: Any = None,
        policy: str | Policy = "balanced",
        notify: Any = None,
    ) -> None:
        self.policy = Policy.named(policy)
        self._shield = Shield()
        self._optimizers = setup.as_optimizers(list(optimizers), monitor=True)
        self._model = model
        self._forward = ForwardState([model] if model is not None else [])
        names = names_of(model, self._optimizers)
        config = setup.run_config(self.policy.name, "the loop's own", 1, self._optimizers)
        parameters = [p for o in self._optimizers for p in parameters_of(o)]
        facts = {"policy": self.policy, "parameters": list(names.values()), "model": model is not None}
        self.ranks = convene(model or nn.Module(), parameters, facts, outside=False, num_micro=1)
        self._journal = Journal(run_dir, names=list(names.values()), run_config=config, rank=self.ranks.rank)
        if self.ranks.size > 1:
            self._journal.number_incidents_from(max(self.ranks.exchange("journal", self._journal.last_incident)))
        self._shield.report_to(self._journal.event)
        self._scheduler, self._scaler = scheduler, scaler
        self._state = self._whole_state()
        device = parameters_of(self._optimizers[0])[0].device
        ring = setup.make_ring("auto", self._state, device, self.policy) if model is not None else None
        self._ring = ring if self.ranks.all("ring", ring is not None) else None
        self._rhythm = Rhythm(self._ring, self.policy.snapshot_every) if self._ring is not None else None
        self._desks = [Desk(o, names, self.policy, self._journal, self._shield, self) for o in self._optimizers]
        self._notifier = Notifier(notify, run=str(self._journal.path or ""))
        for desk in self._desks if self.ranks.rank == 0 else ():
            desk.books.on_incident = self._notifier
        self._clerk = Clerk(self._desks[0].books, self._shield, model, self._optimizers) if model is not None else None
        self._entry: Entry | None = None
        self._refused: set[int] = set()
        self._loss: Tensor | None = None
        self._step = 0
        self._closed = False
        self._final_state = "not checked"
        self._undo: list[Callable[[], Any]] = []
        setup.claim(self._optimizers, weakref.ref(self))
        self._listen(model, scheduler, scaler)
        if model is not None and self.ranks.rank == 0:
            with self._shield("checkup", None):
                chosen = GuardConfig(scaler=scaler, scheduler=scheduler, outside=True)
                report_checkup(self._desks[0].books, model, self._optimizers, chosen)
        if self._clerk is not None:
            self._clerk.inspect_setup()
        self._desks[0].books.show_once(_LIMITS if model is not None else f"{_LIMITS}; {_NO_MODEL}")

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        """What went wrong so far, newest last."""
        return [incident for desk in self._desks for incident in desk.books.incidents]

    @property
    def vitals(self) -> list[Finding]:
        """Silent problems found by the sampled checks."""
        return [found for desk in self._desks for found in desk.books.vitals]

    def settle(self) -> None:
        """Every step was judged before it was applied, so there is nothing to wait for."""

    def summary(self) -> dict[str, Any]:
        """Steps, skipped, success rate, first and last bad step, over all attached optimizers."""
        ledgers = [desk.books.ledger for desk in self._desks]
        steps, applied = sum(x.steps for x in ledgers), sum(x.applied for x in ledgers)
        overflows = sum(x.overflows for x in ledgers)
        first = [x.first_bad_step for x in ledgers if x.first_bad_step is not None]
        last = [x.last_bad_step for x in ledgers if x.last_bad_step is not None]
        return {
            "steps": steps,
            "applied": applied,
            "skipped": sum(x.skipped for x in ledgers),
            "overflows": overflows,
            "rolled_back": sum(x.rollbacks_total for x in ledgers),
            "success_rate": applied / (steps - overflows) if steps > overflows else 1.0,
            "first_bad_step": min(first, default=None),
            "last_bad_step": max(last, default=None),
            "incidents": len(self.incidents),
            "lr_factor": min(x.lr_factor for x in ledgers),
            "clip_factor": min(x.clip_factor for x in ledgers),
            "halted": any(desk.engine.halt is not None for desk in self._desks),
            "final_state": self._final_state,
            "guard_faults": dict(self._shield.faults),
            "journal_degraded": self._journal.degraded,
        }

    def close(self) -> None:
        """Take every hook off and close the journal. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        undo_all(self._undo, self._failed)
        with self._shield("vitals", None):
            if self._clerk is not None:
                self._clerk.decide_provisional()
        with self._shield("final_state", None):
            bad = [name for found in bad_state(self._state).values() for name in found]
            self._final_state = "finite" if not bad else "non-finite: " + ", ".join(map(str, bad[:3]))
            self._journal.event("final_state", state=self._final_state)
        setup.release(self._optimizers)
        for desk in self._desks:
            desk.release()
        with self._shield("notify", None):
            self._notifier.close()
        with self._shield("journal", None):
            self._journal.close()

    def __enter__(self) -> OptimizerGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- listening

    def _listen(self, model: nn.Module | None, scheduler: Any, scaler: Any) -> None:
        for desk in self._desks:
            around = barred(functools.partial(self._around_step, desk), self._failed, functools.partial(_may, desk))
            self._undo.append(wrap_step(desk.optimizer, around))
        if model is not None:
            self._undo.append(model.register_forward_pre_hook(self._before_forward).remove)
            self._undo.append(model.register_forward_hook(self._after_forward).remove)
        if scheduler is not None:
            self._undo.append(wrap_method(scheduler, "step", self._hold_schedule, self._failed))
        if scaler is not None:
            self._undo.append(wrap_method(scaler, "step", self._watch_scaler, self._failed))

    def _failed(self, fault: Exception) -> None:
        """A fault of ours around a call of the program: what is known of the step under way is forgotten."""
        self._shield.note("guard", fault)
        self._entry = self._loss = None
        for desk in self._desks:
            desk.end_update()

    def _before_forward(self, model: nn.Module, _inputs: Any) -> None:
        """The first training forward since the last update: take what it may move. Does not sync."""
        if not model.training or not torch.is_grad_enabled():
            return
        try:  # not `with self._shield`: this is every step's path
            if self._entry is None:
                self._follow_parameters()
                rhythm = self._rhythm
                if rhythm is not None and rhythm.due(self._step) and self.ranks.all("snapshot", rhythm.cheap()):
                    rhythm.take(self._step)
                self._entry = self._forward.take()
                if self._clerk is not None:
                    self._clerk.before_forward(self._step)
            else:
                self._forward.took_again()
        except SteadyError:
            raise
        except Exception as fault:
            self._shield.note("forward_state", fault)

    def _after_forward(self, model: nn.Module, _inputs: Any, output: Any) -> None:
        if not model.training or not torch.is_grad_enabled():
            return
        try:
            self._forward.notice()
            self._forward.left()
            clerk = self._clerk
            if clerk is not None and (clerk.forwards < EARLY_FORWARDS or self._step % AUDIT_EVERY == 0):
                clerk.after_forward(self._step, self._forward)
            loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if isinstance(loss, Tensor) and loss.numel() == 1:
                self._loss = loss.detach()
        except SteadyError:
            raise
        except Exception as fault:
            self._shield.note("forward_state", fault)

    def _follow_parameters(self) -> None:
        """Parameters may have been added to an optimizer since: guard them too, and forget snapshots without them."""
        sizes = [len(group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        if sizes == getattr(self, "_sizes", sizes):
            self._sizes = sizes
            return
        self._sizes = sizes
        names = names_of(self._model, self._optimizers)
        followed = [desk.follow(names) for desk in self._desks]
        if any(followed):
            self._state = self._whole_state()
            self._journal.set_names(list(names.values()))
            if self._ring is not None:
                self._ring = setup.make_ring("auto", self._state, self._desks[0].parameters[0].device, self.policy)
                self._rhythm = Rhythm(self._ring, self.policy.snapshot_every) if self._ring is not None else None

    def _around_step(self, desk: Desk, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._closed:  # a schedule that was made meanwhile still calls through here
            return original(*args, **kwargs)
        closure = kwargs.pop("closure", None) if "closure" in kwargs else (args[0] if args else None)
        rest = args[1:]
        self._refused.discard(id(desk))
        number, self._step = self._step, self._step + 1
        try:
            self._follow_parameters()
            if self._ring is not None and self._ring.copying:
                self._ring.wait_for_copies()  # of what this update is about to change
        except Exception as fault:
            self._shield.note("snapshots", fault)
        if self._clerk is not None and self._clerk.sampling is not None:
            self._clerk.before_update()
        try:
            if closure is not None:
                return desk.update_with_closure(
                    lambda run: original(run, *rest, **kwargs), closure, number, self._loss_of_closure
                )
            return desk.update(lambda: original(*args, **kwargs), number, self._loss, None)
        finally:
            self._after_step(desk)

    def _loss_of_closure(self, loss: Any) -> tuple[Tensor | None, Gradients | None]:
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss = loss.detach().reshape(())
        return self._loss, None

    def _after_step(self, desk: Desk) -> None:
        if id(desk) not in self._refused:
            self._entry = None
            clerk = self._clerk
            if clerk is not None and desk.books.recent:
                if clerk.sampling is not None:
                    clerk.after_update()
                if clerk.expects:
                    clerk.after_step(_reading_of(desk))
        self._loss = None

    # -- what the desks ask

    def _whole_state(self) -> TrainingState:
        names = names_of(self._model, self._optimizers)
        return TrainingState(
            parameters={names[id(p)]: p for o in self._optimizers for p in parameters_of(o)},
            optimizers=self._optimizers, forward=self._forward, scheduler=self._scheduler, scaler=self._scaler,
        )  # fmt: skip

    @property
    def alone(self) -> bool:
        return self.ranks.size == 1

    def state_of(self, desk: Desk) -> TrainingState:
        return self._state

    def agree(self, desk: Desk, reading: Reading) -> Reading:
        return reading if self.ranks.size == 1 else self.ranks.agree_on_loss(reading, reading.step)

    def shown(self, desk: Desk, reading: Reading) -> Reading:
        return reading

    def capabilities(self, desk: Desk, reading: Reading) -> Capabilities:
        return Capabilities(rollback=self._ring is not None and bool(self._ring.steps), rerun=False)

    def withhold(self, desk: Desk, reading: Reading) -> Reading:
        if reading.scale_to_blame:
            return reading
        if self._clerk is not None:
            self._clerk.after_refusal()
        self._undo_forward(desk)
        if reading.undone:
            return self.ranks.name_rank(reading)
        looked = self.ranks.looked({**bad_state(self._state), "bad_inputs": ()}, reading)
        return self.ranks.name_rank(replace(reading, **looked))

    def _undo_forward(self, desk: Desk) -> None:
        """No trace of what the forward passes since the last update moved, but for numbers drawn by the loop itself."""
        if id(desk) not in self._refused:
            self._refused.add(id(desk))
            if self._entry is not None:
                rng = self._forward.rng_without(self._entry.place)
                self._forward.restore(self._entry)
                self._forward.forget_since(self._entry.place)
                put_rng(rng)

    def diagnose(self, desk: Desk, reading: Reading, decision: Decision) -> None:
        """Only the loop itself could run its batch again."""

    def roll_back(self, desk: Desk, decision: Decision) -> Decision:
        """Back to the newest good state. The batches since then are lost: this loop cannot be run again from here."""
        diverged = [found.evidence.get("best_step") for found in decision.findings if found.code == "SY203"]
        onset = next((int(step) for step in diverged if step is not None), None)
        snapshot = self.ranks.good_snapshot(self._ring, onset) if self._ring is not None else None
        if snapshot is None:
            decision = replace(decision, actions=(*decision.actions, Action.HALT))
            return desk.books.amend(decision, "no snapshot available")
        rng = self._forward.rng_without(snapshot.place)
        self._state.restore(snapshot.tree)
        self._forward.forget_since(snapshot.place)
        put_rng(rng)
        assert self._ring is not None
        self._ring.discard_after(snapshot.step)
        self._entry = None  # of a state that is no more
        self._journal.event("rolled_back", to=snapshot.step, batches_run_again=0)
        lost = max(0, decision.step - snapshot.step)
        return desk.books.amend(
            decision, f"restored the state before step {snapshot.step}; {lost} updates since are lost, because "
            "sg.attach(optimizer) cannot run batches again"
        )  # fmt: skip

    def _hold_schedule(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scheduler.step()` right after a refused update does nothing."""
        if self._refused:
            self._refused.clear()
            return None
        return original(*args, **kwargs)

    def _watch_scaler(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """GradScaler drops a step by not calling the optimizer. An overflow of its scale is counted, and nothing is
        undone, because the plain loop undoes nothing either; a bad batch is refused as any other."""
        before = self._step
        result = original(optimizer, *args, **kwargs)
        desk = next((desk for desk in self._desks if desk.optimizer is optimizer), None)
        if desk is not None and self._step == before:
            with self._shield("guard", None):
                loss = None if self._loss is None else float(self._loss)
                if loss is None and bad_state(self._state)["bad_buffers"]:
                    loss = math.nan  # no overflow of a gradient makes a running statistic bad
                desk.dropped(before, loss, float(self._scaler.get_scale()))
            self._entry = None
            self._step += 1
        return result


def wrap_step(optimizer: Optimizer, around: Callable[..., Any]) -> Callable[[], None]:
    """From now on `optimizer.step(...)` is `around(original, ...)`; returns what undoes it.

    On the object, as a method: a schedule that is made later wraps it again by its `__func__`.
    """
    before = vars(optimizer).get("step")
    original = optimizer.step

    @functools.wraps(original)
    def step(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    ours = MethodType(outside_of_compile(step), optimizer)
    vars(optimizer)["step"] = ours

    def undo() -> None:
        if vars(optimizer).get("step") is ours:
            if before is None:
                del vars(optimizer)["step"]
            else:
                vars(optimizer)["step"] = before

    return undo


def _may(desk: Desk, closure: Any = None, *_: Any, **__: Any) -> bool:
    """Whether an update may be made that the guard failed to judge; before its closure ran there is nothing to see."""
    return not desk.engine.policy.acts or (closure is not None and not closure.made) or desk.finite()


def _reading_of(desk: Desk) -> Reading:
    last = desk.books.recent[-1]
    return Reading(step=last.step, loss=last.loss, grad_norm=last.grad_norm, loss_scale=last.loss_scale)
