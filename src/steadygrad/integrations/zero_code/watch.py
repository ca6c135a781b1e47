"""The watch over one process of a guarded program: it hears of calls, backwards, clipping and updates, and judges.

At each `optimizer.step()` it reads one row of numbers on the host, as `sg.attach(optimizer)` does, and where the
update must not land it gives the optimizer nothing to do, puts back what the forward moved, and asks the clinic. An
optimizer that can refuse on its device does so, and the row is read behind its update, so the device does not wait.
Nothing of ours may stop the program: every entry is shielded, and where we break, a bare check for NaN remains.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ...engine import setup
from ...engine.gate import parameters_of
from ...engine.policy import Capabilities, Policy
from ...engine.readout import must_refuse
from ...engine.shield import Shield
from ...engine.training_state import TrainingState, bad_state
from ...records import Action, Decision, Reading
from ..desk import Desk, Letter
from ..patching import Patches, shell_of
from .backwards import Backwards
from .batches import Batches
from .calls import Call, note_loss
from .clipping import Clipping
from .examination import Examiner
from .followers import Followers
from .ledger import Ledger
from .listening import listen
from .models import Models
from .past import Past, WentBack
from .ranks import RankWords
from .settings import Settings
from .slices import Slices
from .updates import Update, finite, halted, is_below, scaler_refuses, step_frame

_NOTHING = Capabilities(lr=False)
"""What can be done about trouble besides skipping: the loop, its rate and its past are the program's own."""


class Watch:
    """One process's watch. `start` patches torch, `finish` says what was seen."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.policy = Policy.named(settings.policy)
        self.backwards = Backwards()
        self.batches = Batches()
        self.past = Past(self)
        self.followers = Followers(self.past.followed)
        self.shield = Shield()
        self.clipping = Clipping(self.shield)
        self.ledger = Ledger(settings, self.shield)
        self.models = Models(
            self.shield, away=lambda: self.away or self.looked_into, on_call=self._called, on_return=self._returned
        )
        self.slices = Slices()
        self.examiner = Examiner(self)
        self.busy = False
        self.step = 0
        self.inside_trainer = 0
        self._desks: weakref.WeakKeyDictionary[Optimizer, Desk] = weakref.WeakKeyDictionary()
        self._words: weakref.WeakKeyDictionary[Optimizer, RankWords] = weakref.WeakKeyDictionary()
        self._update: Update | None = None
        self._halt: Decision | None = None
        self._entered: Reading | None = None
        self._refused_steps: list[int] = []
        self._process = os.getpid()
        self._patches: Patches | None = None

    def start(self) -> None:
        """Begin to listen."""
        if self._patches is None:
            self._patches = listen(self)

    def stop(self) -> None:
        """Everything of torch as it was."""
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
        self.models.close()

    def finish(self) -> dict[str, Any]:
        """What was seen, as plain data; closes the journal."""
        if os.getpid() != self._process:
            return {}
        with self.shield("backward", None):
            self.backwards.read()
        return self.ledger.close(self)

    @property
    def alone(self) -> bool:
        """Whether no other rank trains the same weights."""
        distributed = torch.distributed
        return not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)

    @property
    def away(self) -> bool:
        """Whether this is not our business: we run the program's code ourselves, a trainer's guard looks after it, or
        this is a forked child."""
        return self.busy or bool(self.ledger.guards) or os.getpid() != self._process

    @property
    def looked_into(self) -> bool:
        """Whether somebody else (a guard of the program's own) is tracing a step just now."""
        return bool(torch._C._len_torch_dispatch_stack()) and not self.examiner.tracing

    # -- what is heard before an update

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was made: its parameters tell which modules are the models."""
        with self.shield("models", None):
            self.models.adopt(parameters_of(optimizer))

    def optimizer_of(self, model: Any) -> Optimizer | None:
        """The optimizer that trains this model, if one has stepped."""
        first = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
        return next((o for o, desk in self._desks.items() if any(first is p for p in desk.parameters)), None)

    def _called(self, call: Call) -> None:
        if len(self.models.calls) == 1:
            self.slices.forget()
            with self.shield("snapshots", None):
                self.past.window_begins()
        self.slices.called(call)
        self.examiner.call_begins(call)

    def _returned(self, call: Call, output: Any) -> None:
        self.examiner.call_ended(call, output)

    def zeroed(self) -> None:
        """Gradients were cleared."""
        if not self.away:
            self.models.zeroed()
            self.backwards.zeroed()

    def handed_out(self, iterator: Any, batch: Any) -> None:
        """A loader hands a batch out."""
        with self.shield("batches", None):
            self.batches.hand_out(iterator, batch)

    def name_of_batch(self, batch: Any) -> str:
        """How a batch is called: by its samples where a loader showed them, else by counting."""
        return self.batches.name(batch)

    def backward_begins(self, loss: Tensor) -> None:
        """A loss, before its backward."""
        with self.shield("backward", None):
            self.backwards.begin(loss)
            note_loss(self.models.calls, loss)
            self.slices.backward_begins(loss)
            self.examiner.backward_begins(loss)

    # -- at an update

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Torch's hook before every `optimizer.step()`. One host read; None lets the update land."""
        if self.away:
            return None
        frame = step_frame()
        outer = self._update
        if outer is not None and is_below(frame, outer.frame):
            return self._inside_another(outer, optimizer, args, kwargs)
        update = self._update = Update(optimizer, frame)
        if setup.is_claimed(optimizer) or not any(group["params"] for group in optimizer.param_groups):
            return None
        if self.backwards.depth:
            return self._in_backward(update, args, kwargs)
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if isinstance(optimizer, LBFGS):
            self.ledger.tell(
                "lbfgs", "LBFGS evaluates its loss several times inside step(): it is watched, not refused"
            )
        if closure is not None:
            return self._with_closure(update, args, kwargs, closure)
        if self._lands(update):
            return None
        return (shell_of(optimizer), *args[1:]), kwargs

    def after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Torch's hook after every `optimizer.step()`. Raises where the budgets are spent."""
        update = self._update
        if self.away or update is None or update.optimizer is not optimizer:
            return
        self._update = None
        if update.desk is None:
            return
        update.desk.end_update()
        if update.letter is not None:
            with self.shield("guard", None):
                self._open(update, update.desk, update.letter)
        with self.shield("snapshots", None):
            if not update.refused:
                self.past.landed(optimizer, self._entered)
        self._entered = None
        self.followers.updated(optimizer, refused=update.refused)
        self.models.stepped()
        self.backwards.judged()
        if self._halt is not None:
            raise halted(self._halt, self.ledger.path)

    def _inside_another(self, outer: Update, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """A container's step calls its parts' steps: they land or do not land with the container's."""
        if not outer.refused:
            return None
        return (shell_of(optimizer), *args[1:]), kwargs

    def _in_backward(self, update: Update, args: Any, kwargs: Any) -> Any:
        """A step for one parameter in the middle of backward: others may have landed, so only this one is refused."""
        self.ledger.tell(
            "in_backward",
            "optimizers step inside backward, a parameter at a time: a bad gradient is refused for its own parameter, "
            "but parameters that stepped before it in the same backward have moved",
        )
        if not self.policy.acts or finite(parameters_of(update.optimizer)):
            self.ledger.in_backward += 1
            return None
        self.ledger.in_backward_refused += 1
        return (shell_of(update.optimizer), *args[1:]), kwargs

    def _with_closure(self, update: Update, args: Any, kwargs: Any, closure: Callable[[], Any]) -> Any:
        """Forward and backward happen inside `step(closure)`: judge after them; without gradients nothing lands."""
        parameters = parameters_of(update.optimizer)

        def judged_closure() -> Any:
            if self.busy:
                return closure()
            with self.shield("models", None):
                self.models.begin_window()
            loss = closure()
            if isinstance(loss, Tensor) and not self.backwards.losses and loss.numel() == 1:
                self.backwards.losses.append(loss.detach())
            if not self._lands(update):
                for parameter in parameters:
                    parameter.grad = None
            return loss

        rest = {key: value for key, value in kwargs.items() if key != "closure"}
        return (args[0],), {**rest, "closure": judged_closure}

    def scaler_step(self, original: Callable[[], Any], scaler: Any, optimizer: Any) -> Any:
        """GradScaler drops a step by not calling the optimizer, so no hook runs. Its own overflows are its business;
        a step whose loss was bad is trouble that it only hides."""
        before = self.step
        result = original()
        if self.away or self.step != before or not isinstance(optimizer, Optimizer) or setup.is_claimed(optimizer):
            return result
        with self.shield("guard", None):
            self._dropped(scaler, optimizer)
        return result

    def _dropped(self, scaler: Any, optimizer: Optimizer) -> None:
        if not scaler.is_enabled():
            return
        desk = self._desk(optimizer)
        loss = self.backwards.total()
        value = math.nan if loss is None else float(loss)
        step, self.step = self.step, self.step + 1
        if loss is None or math.isfinite(value):
            desk.count_overflow(step)
            desk.books.journal.event("loss_scale_overflow", step=step)
            self.followers.updated(optimizer, refused=False)
        else:
            reading = Reading(step=step, loss=value, grad_norm=math.nan, lr=0.0, refused=True)
            # By this rank's own loss: the others may not have heard of anything.
            self._refuse(desk, reading, together=False)
            self.followers.updated(optimizer, refused=True)
        self.models.stepped()
        self.backwards.judged()

    # -- judging

    def _lands(self, update: Update) -> bool:
        """Whether this update may land. If we break, only a finite gradient does."""
        unknown: bool | None = None
        with self.shield("guard", unknown) as answer:
            answer.value = self._judge(update)
        good = answer.value
        if good is None:
            good = not self.policy.acts or finite(parameters_of(update.optimizer))
        update.refused = not good
        return good

    def _judge(self, update: Update) -> bool:
        optimizer = update.optimizer
        desk = update.desk = self._desk(optimizer)
        step, self.step = self.step, self.step + 1
        with self.shield("snapshots", None):
            self.past.update_begins(desk, step)
        if not self.models.heard:
            self.models.look_again(desk.parameters)
        self.examiner.update_begins()
        loss = self.backwards.total()
        clipped = self.clipping.take(desk.parameters)
        alone = self.alone
        if alone and self.policy.acts and desk.refuses_on_device():
            desk.begin_update()
            update.step, update.loss_seen = step, loss is not None
            update.letter = desk.seal(loss, clipped)
            if update.letter is not None:
                return True
        reading = desk.read(step, loss if alone else None, clipped)
        refused = self.policy.acts and must_refuse(reading) and not self._only_watched(optimizer)
        if not alone and loss is not None:
            # A loss is this rank's own: all ranks must decide alike, so it is shown and not judged.
            reading = replace(reading, loss=float(loss))
        if refused and scaler_refuses(optimizer, reading):
            desk.count_overflow(step)
            desk.books.journal.event("loss_scale_overflow", step=step, scale=reading.loss_scale)
            desk.begin_update()
            return True
        if not refused:
            self._enter(desk, reading, loss_seen=loss is not None)
            desk.begin_update()
            return True
        self._refuse(desk, reading, loss_seen=loss is not None)
        return False

    def _open(self, update: Update, desk: Desk, letter: Letter) -> None:
        """Judge an update that was made under a device flag: read behind it, the device has not been kept waiting."""
        reading = desk.open(letter, update.step)
        if not reading.refused:
            self._enter(desk, reading, loss_seen=update.loss_seen)
            return
        update.refused = True
        self._refuse(desk, reading, loss_seen=update.loss_seen)

    def _only_watched(self, optimizer: Optimizer) -> bool:
        """Whether an update of this optimizer cannot be refused by what this process sees of it."""
        if isinstance(optimizer, LBFGS):
            return True
        if self.alone:
            return False
        parts = any(type(parameter).__name__ == "FlatParameter" for parameter in parameters_of(optimizer))
        if not parts and "deepspeed" not in sys.modules:
            return False
        self.ledger.tell(
            "sharded",
            "each rank holds a part of every gradient here (DeepSpeed or FSDP1), so no rank can decide alone: it is "
            "watched, not refused. FSDP2 (fully_shard) is guarded",
        )
        return True

    def _enter(self, desk: Desk, reading: Reading, *, loss_seen: bool) -> None:
        self._entered = reading
        findings = desk.books.judge(reading)
        decision = desk.books.decide(reading, findings, _NOTHING)
        if desk is not self.ledger.first_desk:
            reading = replace(reading, norms=(), names=())
        desk.books.enter(reading, decision, applied=True, loss_seen=loss_seen)

    def _refuse(self, desk: Desk, reading: Reading, *, loss_seen: bool = True, together: bool = True) -> None:
        """Leave no trace of the step, remember it, and find out why. `together`: the other ranks refuse it too."""
        self.busy = True
        try:
            with self.shield("forward_state", None):
                uncertain = self.models.put_back()
                if uncertain:
                    desk.books.journal.event("unregistered_state_changed", names=uncertain)
            state = self.state_of(desk)
            with self.shield("clinic", None):
                self.examiner.look_at_batch()
            reading = replace(
                reading, refused=True, **bad_state(state), bad_inputs=self.examiner.bad_inputs,
                batch_key=self.examiner.batch_key,
            )  # fmt: skip
            words = self.examiner.words = self._words_of(desk) if together and not self.alone else None
            if words is not None:
                reading = words.agree(reading)
            findings = desk.books.judge(reading)
            good = self._good_states(reading, words)
            can = Capabilities(lr=False, rollback=bool(good))
            decision = desk.books.decide(reading, findings, can)
            num_incidents = len(desk.books.incidents)
            desk.books.enter(reading, decision, applied=False, loss_seen=loss_seen)
            with self.shield("clinic", None):
                self.examiner.examine(desk, reading, state)
            if Action.ROLLBACK in decision.actions:
                decision = self._go_back(desk, decision, good)
            self._refused_steps.append(reading.step)
            if desk.books.incidents and (words is None or words.speaks):
                self.ledger.incident(desk.books.incidents[-1], new=len(desk.books.incidents) > num_incidents)
            if Action.HALT in decision.actions:
                self._halt = decision
                desk.books.journal.event("halted", step=decision.step, reason=decision.reason)
        finally:
            self.busy = False

    def refused_since(self, step: int) -> int:
        """How many updates were refused from this step on, before the one at hand."""
        return sum(1 for refused in self._refused_steps if refused >= step)

    def _good_states(self, reading: Reading, words: RankWords | None) -> list[int]:
        """The steps to which all ranks can go back, if the weights, moments or buffers are bad: else nothing helps."""
        if not (reading.bad_parameters or reading.bad_state or reading.bad_buffers):
            return []
        steps: list[int] = []
        with self.shield("snapshots", steps) as answer:
            answer.value = self.past.steps
        return words.in_common(answer.value) if words is not None else answer.value

    def _go_back(self, desk: Desk, decision: Decision, good: list[int]) -> Decision:
        """To the newest good state. What came of it stands in the incident."""
        nothing: WentBack | None = None
        with self.shield("snapshots", nothing) as answer:
            answer.value = self.past.go_back(decision.step, good)
        went = answer.value
        if went is None:
            decision = replace(decision, actions=(*decision.actions, Action.HALT))
        said = str(went) if went is not None else "but no good state could be put back"
        decision = replace(decision, reason=f"{decision.reason}; {said}")
        if went is not None:
            desk.books.journal.event("rolled_back", to=went.step, batches_run_again=went.again, lost=went.lost)
        if desk.books.incidents:
            desk.books.incidents[-1] = replace(desk.books.incidents[-1], decision=decision)
            desk.books.journal.incident(desk.books.incidents[-1])
        desk.books.show(f"step {decision.step}: {said}", kind="rollback")
        return decision

    def _words_of(self, desk: Desk) -> RankWords | None:
        """What the ranks of this optimizer tell each other, made at its first refused step."""
        words = self._words.get(desk.optimizer)
        nothing: RankWords | None = words
        with self.shield("ranks", nothing) as answer:
            if words is None:
                words = self._words[desk.optimizer] = RankWords(desk.parameters)
            answer.value = words
        return answer.value

    def state_of(self, desk: Desk) -> TrainingState:
        """Everything one optimizer's step can change."""
        return TrainingState(
            parameters=desk.named_parameters(), optimizers=[desk.optimizer], forward=self.models.forward_state()
        )

    def _desk(self, optimizer: Optimizer) -> Desk:
        desk = self._desks.get(optimizer)
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if desk is not None and len(desk.parameters) == count:
            return desk
        parameters = parameters_of(optimizer)
        self.models.adopt(parameters)
        named = self.models.names()
        number = len(self._desks)
        names = {id(p): named.get(id(p), f"optimizer{number}.{place}") for place, p in enumerate(parameters)}
        made = Desk(optimizer, names, self.policy, self.ledger.journal(list(names.values()), optimizer), self.shield)
        if desk is not None:
            made.books = desk.books  # parameters were added; the past is the same
        self._desks[optimizer] = made
        self.ledger.enter_desk(made, instead_of=desk)
        return made

    # -- the end

    def crashed(self, error: BaseException) -> None:
        """An exception is about to end the program: was it a NaN that it did not mention?"""
        if self.away:
            return
        self.busy = True
        try:
            with self.shield("crash", None):
                self.examiner.crash(error)
        finally:
            self.busy = False
