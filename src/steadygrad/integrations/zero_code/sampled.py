"""The sampled checks of a watched program: silent problems, looked for at a few steps of each training.

The same checks as at every other entry point (see `engine.clerk`). What they warn of is looked for again by running the
loop's own lines of the last steps, and only what is seen there becomes an incident.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ...diagnosis.confirm import ENOUGH_STEPS, look_into
from ...engine.clerk import Clerk
from ...engine.diagnosis_requests import MOST
from ...engine.parameters import parameters_of
from ...records import Reading
from ..desk import Desk
from .calls import Call
from .effects import HasEffect, supervised
from .play_patient import PlayPatient
from .rerun import Rerun

if TYPE_CHECKING:
    from .watch import Watch


class SampledChecks:
    """One clerk for each optimizer whose parameters belong to one model. Where nothing is due it is a comparison."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._clerks: weakref.WeakKeyDictionary[Optimizer, Clerk | None] = weakref.WeakKeyDictionary()
        self._sampled: int | None = None
        self._asked = 0

    def optimizer_made(self, made: Optimizer) -> None:
        """Another optimizer: a model that it trains too is not sampled any more."""
        new = {id(parameter) for parameter in parameters_of(made)}
        for optimizer, clerk in list(self._clerks.items()):
            model = clerk.model() if clerk is not None else None
            if clerk is not None and model is not None and any(id(p) in new for p in model.parameters()):
                clerk.after_refusal()  # takes its hooks off
                del self._clerks[optimizer]

    def called(self, call: Call) -> None:
        """A model is called: what measures activations is attached on a step that is due."""
        for optimizer, clerk in list(self._clerks.items()):
            desk = self._watch.known_desk(optimizer)
            if clerk is not None and desk is not None and clerk.model() is call.module:
                clerk.before_forward(desk.books.ledger.steps)

    def around(self, desk: Desk, make: Callable[[], Any]) -> Callable[[], Any]:
        """An update, and around it what a sampled step notes of the gradients and weights."""
        clerk = self._clerk(desk)
        if clerk is None or getattr(desk.optimizer, "grad_scale", None) is not None:
            return make
        step = desk.books.ledger.steps
        clerk.before_forward(step)  # the first update of an optimizer comes before anything is known of it
        if clerk.sampling is None:
            return make
        self._sampled = step

        def sampled() -> Any:
            clerk.before_update()
            result = make()
            clerk.after_update()
            return result

        return sampled

    def updated(self, desk: Desk) -> None:
        """An update was made or withheld."""
        sampled, self._sampled = self._sampled, None
        clerk = self._clerks.get(desk.optimizer)
        if clerk is None:
            return
        if desk.refused or desk.last is None:
            clerk.after_refusal()
        else:
            clerk.after_step(desk.last, -1 if sampled is None else sampled)
        if clerk.suspects and desk.last is not None and desk.books.ledger.steps >= ENOUGH_STEPS:
            self._look_into(desk, clerk, desk.last)

    def finish(self) -> None:
        """The program ends: tell what was waiting for more steps."""
        for optimizer, clerk in list(self._clerks.items()):
            desk = self._watch.known_desk(optimizer)
            if clerk is not None and desk is not None and desk.books.recent:
                clerk.decide_provisional()
                if clerk.suspects:
                    last = desk.books.recent[-1]
                    self._look_into(desk, clerk, Reading(step=last.step, loss=last.loss, grad_norm=last.grad_norm))

    def _clerk(self, desk: Desk) -> Clerk | None:
        optimizer = desk.optimizer
        if optimizer not in self._clerks:
            self._clerks[optimizer] = self._new(desk) if self._watch.alone else None
        return self._clerks[optimizer]

    def _new(self, desk: Desk) -> Clerk | None:
        own = {id(parameter) for parameter in desk.parameters}
        roots = [root for root in self._watch.models.roots() if any(id(p) in own for p in root.parameters())]
        if len(roots) != 1 or self._watch.trained_by_others(roots[0], desk.optimizer):
            return None  # what another optimizer moves, and when, is not seen at this one's updates
        clerk = Clerk(desk.books, self._watch.shield, roots[0], [desk.optimizer])
        clerk.inspect_setup()
        return clerk

    def _look_into(self, desk: Desk, clerk: Clerk, reading: Reading) -> None:
        """Ask about what was warned of, once, and as if nothing had happened."""
        watch, slices = self._watch, self._watch.slices
        depth = {"auto": "full", "origin": "origin"}.get(watch.settings.diagnose)
        kept = slices.plays and len(slices.plays) == len(slices.reached) and 1 + len(slices.before) >= ENOUGH_STEPS
        if not kept:
            return  # more steps come
        findings, clerk.suspects = clerk.suspects, []
        if depth is None or self._asked >= MOST:
            return
        watch.busy = True
        try:
            with watch.shield("diagnosis", None):
                patient = Rerun(watch, desk, reading, watch.state_of(desk), "silent").patient(slices.plays)
                try:
                    answer = look_into(patient, findings, depth=depth) if _can_run(patient) else None
                finally:
                    patient.release()
                if answer is not None:
                    self._asked += 1
                    desk.books.enter_silent(reading.step, answer[1], answer[0])
                    desk.books.announce()
        finally:
            watch.busy = False


def _can_run(patient: PlayPatient) -> bool:
    """Whether the loop's lines can be run again without an effect on anything but what is restored."""
    if any(play.overwritten for play in patient.plays):
        return False
    try:
        with patient.examining():
            patient.restore()
            for batch in patient.batches:
                with supervised(batch.play.state, patient.restored_tensors()):
                    patient.forward(batch)
    except HasEffect:
        return False
    return not patient.forward_only
