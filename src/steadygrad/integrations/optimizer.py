"""A loop that stays as it is, guarded at `optimizer.step()`.

The hook sees the gradients, reads one row of numbers on the host, and swaps the optimizer for an empty shell where
the update must not land: `step()` then has nothing to do, whatever optimizer it is, and nothing of its state moves.
With the model given, what its forward passes moved since the last update (running statistics, RNG, counters) is put
back too. One host read a step.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine import setup
from ..engine.forward_state import Entry, ForwardState
from ..engine.gate import parameters_of
from ..engine.notify import Notifier
from ..engine.ranks_council import convene
from ..engine.readout import must_refuse
from ..engine.shield import Shield
from ..engine.training_state import TrainingState, bad_state
from ..errors import TrainingHalted
from ..journal import Journal
from ..policy import Capabilities, Policy
from ..records import Action, Decision, Incident
from ..start import tell_checkup
from .desk import Desk, names_of
from .patching import outside_of_compile, shell_of, wrap_method
from .rhythm import Rhythm

_KEEPS_OUT = {Action.SKIP, Action.ROLLBACK, Action.HALT}
"""Decisions by which the update at hand does not land, whatever its own numbers are."""


class OptimizerGuard:
    """What `sg.attach(optimizer, ...)` returns.

    Args:
        optimizers: one or several; each one's steps are judged on their own.
        model: lets the guard name parameters, put back what forward moved, and roll back poisoned weights.
        scheduler: held for one call after a refused step.
        scaler: your GradScaler, so that the steps it drops are seen and leave no trace either.
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
        self._optimizers = setup.as_optimizers(list(optimizers), monitor=not self.policy.acts)
        self._forward = ForwardState([model] if model is not None else [])
        names = names_of(model, self._optimizers)
        config = setup.run_config(self.policy.name, "the loop's own", 1, self._optimizers)
        parameters = [p for o in self._optimizers for p in parameters_of(o)]
        facts = {"policy": self.policy, "parameters": list(names.values()), "model": model is not None}
        self._council = convene(model or nn.Module(), parameters, facts, outside=False, num_micro=1)
        self._journal = Journal(run_dir, names=list(names.values()), run_config=config, rank=self._council.rank)
        if self._council.size > 1:
            self._journal.number_incidents_from(max(self._council.exchange("journal", self._journal.last_incident)))
        self._shield.report_to(self._journal.event)
        self._state = TrainingState(
            parameters={names[id(p)]: p for o in self._optimizers for p in parameters_of(o)},
            optimizers=self._optimizers, forward=self._forward, scheduler=scheduler, scaler=scaler,
        )  # fmt: skip
        device = parameters_of(self._optimizers[0])[0].device
        ring = setup.make_ring("auto", self._state, device, self.policy) if model is not None else None
        self._ring = ring if self._council.all("ring", ring is not None) else None
        self._rhythm = Rhythm(self._ring, self.policy.snapshot_every) if self._ring is not None else None
        self._desks = [Desk(o, names, self.policy, self._journal, self._shield) for o in self._optimizers]
        self._notifier = Notifier(notify, run=str(self._journal.path or ""))
        for desk in self._desks if self._council.rank == 0 else ():
            desk.books.on_incident = self._notifier
        self._entry: Entry | None = None
        self._refused: set[int] = set()
        self._loss: Tensor | None = None
        self._halt: Decision | None = None
        self._step = 0
        self._undo: list[Callable[[], Any]] = []
        setup.claim(self._optimizers, weakref.ref(self))
        self._listen(model, scheduler, scaler)
        if model is not None and self._council.rank == 0:
            with self._shield("checkup", None):
                tell_checkup(self._desks[0].books, model, self._optimizers, scaler, scheduler)

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        return [incident for desk in self._desks for incident in desk.books.incidents]

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
            "halted": self._halt is not None,
            "guard_faults": dict(self._shield.faults),
            "journal_degraded": self._journal.degraded,
        }

    def close(self) -> None:
        """Take every hook off and close the journal."""
        while self._undo:
            self._undo.pop()()
        setup.release(self._optimizers)
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
            before = outside_of_compile(functools.partial(self._before_step, desk))
            after = functools.partial(self._after_step, desk)
            self._undo.append(desk.optimizer.register_step_pre_hook(before).remove)
            self._undo.append(desk.optimizer.register_step_post_hook(after).remove)
        if model is not None:
            self._undo.append(model.register_forward_pre_hook(self._before_forward).remove)
            self._undo.append(model.register_forward_hook(self._after_forward).remove)
        if scheduler is not None:
            self._undo.append(wrap_method(scheduler, "step", self._hold_schedule))
        if scaler is not None:
            self._undo.append(wrap_method(scaler, "step", self._watch_scaler))

    def _before_forward(self, model: nn.Module, _inputs: Any) -> None:
        """The first training forward since the last update: take what it may move. Does not sync."""
        if self._entry is not None or not model.training or not torch.is_grad_enabled():
            return
        with self._shield("forward_state", None):
            rhythm = self._rhythm
            if rhythm is not None and rhythm.due(self._step) and self._council.all("snapshot", rhythm.cheap()):
                rhythm.take(self._step)
            self._entry = self._forward.take()

    def _after_forward(self, model: nn.Module, _inputs: Any, output: Any) -> None:
        if not model.training:
            return
        with self._shield("forward_state", None):
            self._forward.notice()
            if self._step < 3:
                self._forward.audit(values=True)
            loss = getattr(output, "loss", None)
            if isinstance(loss, Tensor) and loss.numel() == 1:
                self._loss = loss.detach()

    def _before_step(self, desk: Desk, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is not None:
            return self._with_closure(desk, args, kwargs, closure)
        if self._judged(desk):
            desk.begin_update()
            return None
        return (shell_of(optimizer), *args[1:]), kwargs

    def _with_closure(self, desk: Desk, args: Any, kwargs: Any, closure: Callable[[], Any]) -> Any:
        """Forward and backward happen inside `step(closure)`: judge after them; without gradients nothing lands."""

        def judged_closure() -> Any:
            with torch.enable_grad():
                loss = closure()
            if isinstance(loss, Tensor) and loss.numel() == 1:
                self._loss = loss.detach()
            if self._judged(desk):
                desk.begin_update()
            else:
                for parameter in desk.parameters:
                    parameter.grad = None
            return loss

        rest = {key: value for key, value in kwargs.items() if key != "closure"}
        return (args[0],), {**rest, "closure": judged_closure}

    def _after_step(self, desk: Desk, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        desk.end_update()
        if id(desk) not in self._refused:
            self._entry = None
        self._loss = None
        if self._halt is not None:
            raise TrainingHalted(f"Training was halted at step {self._halt.step}: {self._halt.reason}.")

    # -- judging

    def _judged(self, desk: Desk) -> bool:
        """Whether this update may land. One host read. A fault of ours lets only a finite gradient through."""
        self._refused.discard(id(desk))
        step, self._step = self._step, self._step + 1
        with self._shield("guard", desk.finite_or_nothing) as answer:
            good = self._judge(desk, step)
            answer.value = lambda: good
        return answer.value()

    def _judge(self, desk: Desk, step: int) -> bool:
        if self._ring is not None:
            self._ring.wait_for_copies()  # of what this update is about to change
        reading = self._council.agree_on_loss(desk.read(step, self._loss), step)
        can = Capabilities(rollback=self._ring is not None and bool(self._ring.steps))
        findings = desk.books.judge(reading)
        refused = self.policy.acts and must_refuse(reading)
        if refused:
            self._undo_forward(desk)
            looked = self._council.looked({**bad_state(self._state), "bad_inputs": ()}, reading)
            reading = self._council.name_rank(replace(reading, refused=True, **looked))
            findings = desk.books.judge(reading)
        decision = desk.books.decide(reading, findings, can)
        self._council.note(decision)
        lands = not refused and not _KEEPS_OUT & set(decision.actions)
        desk.books.enter(reading, decision, applied=lands, loss_seen=self._loss is not None)
        if lands:
            return True
        self._undo_forward(desk)
        if Action.ROLLBACK in decision.actions:
            decision = self._roll_back(desk, decision)
        desk.books.announce()
        if Action.HALT in decision.actions:
            self._halt = decision
        return False

    def _undo_forward(self, desk: Desk) -> None:
        """No trace of what the forward passes since the last update moved."""
        if id(desk) not in self._refused:
            self._refused.add(id(desk))
            if self._entry is not None:
                self._forward.restore(self._entry)

    def _roll_back(self, desk: Desk, decision: Decision) -> Decision:
        """Back to the newest good state. The batches since then are gone: this loop is not ours to run again."""
        diverged = [found.evidence.get("best_step") for found in decision.findings if found.code == "SY203"]
        onset = next((int(step) for step in diverged if step is not None), None)
        snapshot = self._council.good_snapshot(self._ring, onset) if self._ring is not None else None
        if snapshot is None:
            decision = replace(decision, actions=(*decision.actions, Action.HALT))
            return self._say(desk, decision, "but there is no good state to go back to")
        self._state.restore(snapshot.tree)
        assert self._ring is not None
        self._ring.discard_after(snapshot.step)
        self._entry = None  # of a state that is no more
        self._journal.event("rolled_back", to=snapshot.step, batches_run_again=0)
        lost = max(0, decision.step - snapshot.step)
        return self._say(
            desk, decision, f"the state before step {snapshot.step} was put back; {lost} updates since are lost, "
            "because this loop is not ours to run again"
        )  # fmt: skip

    def _say(self, desk: Desk, decision: Decision, what: str) -> Decision:
        """What came of a decision, in its reason and in the incident that it belongs to."""
        decision = replace(decision, reason=f"{decision.reason}; {what}")
        incidents = desk.books.incidents
        if incidents and incidents[-1].last_step == decision.step:
            incidents[-1] = replace(incidents[-1], decision=decision)
            desk.books.journal.incident(incidents[-1])
        desk.books.show(f"step {decision.step}: {what}", kind="rollback")
        return decision

    def _hold_schedule(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scheduler.step()` right after a refused update does nothing."""
        if self._refused:
            self._refused.clear()
            return None
        return original(*args, **kwargs)

    def _watch_scaler(self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """GradScaler drops a step by not calling the optimizer: no hook of ours runs, so look at the count."""
        before = self._step
        result = original(optimizer, *args, **kwargs)
        desk = next((desk for desk in self._desks if desk.optimizer is optimizer), None)
        if desk is not None and self._step == before:
            self._refused.add(id(desk))
            with self._shield("forward_state", None):
                if self._entry is not None:
                    self._forward.restore(self._entry)
                desk.books.journal.event("loss_scale_overflow", step=before)
                desk.count_overflow(before)
            self._step += 1
        return result
