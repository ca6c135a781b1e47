"""A trial of learning rates: the batches since a snapshot are run again with each, and the one that does best is kept.

Each rate starts from the same weights, moments, schedule and random numbers and is given the same batches in the same
order. The loss of a batch is taken before its update, so it is the loss of a batch that this rate has not seen. Batches
whose loss under the snapshot's weights is out of all proportion are left out of the comparison, and leaving them out of
the training is tried as well, at the full rate.

The steps are also run again as they were: a rise that does not come again was not for the rate, and no more is said of
it.

A trial is a few runs of at most as many steps as there are since the snapshot. It ends with state bit for bit as it
was; nothing of it is recorded as a step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ....detect.tensors.foreign_objects import getattr
from ....policy.escalation import Ledger
from ....records.rerun_flag import rerun
from ...build_parts import Parts
from ...fault_barrier import UserCodeError
from ...state.batch_buffer import BufferedBatch, by_step
from ...state.rng import put_rng
from ...state.snapshot_ring import Snapshot
from ...state.training_state import copy_tree
from ...step.numerics_findings import muted
from ...step.window import out_of_memory
from ..preserved_attributes import preserved_attributes
from ..reruns.quiet import quiet
from ..reruns.reached_state import ReachedState, reached_by
from ..reruns.side_effects import HasEffect, calls_supervised
from .descent_check import descends

FEWEST = 6
"""Steps since the snapshot below which nothing can be compared."""
_BAD_IN_A_ROW = 3
_OUT_OF_PROPORTION = 10.0
_SHARE_BAD = 0.5
_GIVEN_UP_AFTER = 16
_CLEARLY_WORSE = 1.5
_AS_GOOD = 0.05
_CONTROLLED, _SAME = 8, 0.02
_RISEN, _MARGIN = 3.0, 8
_EARLIER = 12
_ASKED = 2
_BETTER_ON, _CLEAR_GAIN, _NO_WORSE = 0.75, 0.05, 0.01
_RECURS = 0.5
"""The share of the difference that must come again when the steps are run again at the full rate."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the batches since the snapshot. `losses` has one for each step that it came to, NaN where it had
    none; `factor` is what the program's learning rate was multiplied by."""

    factor: float
    without: bool
    """Whether the batches that are out of proportion were left out."""
    losses: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of a trial. Losses are means over the last third of the batches that were compared."""

    snapshot: Snapshot
    batches: int
    attempts: Sequence[tuple[Attempt, float]]
    """With the loss of each; infinity for one that did not reach the end."""
    best: Attempt
    full: float
    """What the program's rate was multiplied by so far."""
    before: float
    """With the weights of the snapshot."""
    onset: int
    """The step up to which all attempts have the full rate: none had risen by then."""
    as_it_was: float
    """As the training itself had them; NaN where it recorded none."""
    share_better: float
    """Of the compared batches, how many have a smaller loss in the best attempt than the training had."""
    left_out: frozenset[str] = frozenset()
    sound: frozenset[str] = frozenset()
    """The batches that the best attempt made updates with, also those that the training itself had refused."""
    seconds: float = 0.0
    spread: float = 0.0
    """How much the losses of the best attempt vary from batch to batch."""
    chance: float = 0.0
    """How far the mean of its differences to the training's losses may be off by chance."""

    @property
    def lowest(self) -> float:
        """The loss of the best attempt."""
        return next(loss for attempt, loss in self.attempts if attempt is self.best)

    def losses(self) -> dict[str, float]:
        """By the name of each attempt."""
        return {name_of(attempt): loss for attempt, loss in self.attempts}

    @property
    def gain(self) -> float:
        """By how much the lowest loss is below that of the training."""
        return self.as_it_was - self.lowest

    @property
    def clearly_better(self) -> bool:
        """Whether the best attempt has a lower loss on most batches, by a share of it and by more than they vary."""
        return self.share_better >= _BETTER_ON and self.gain >= max(_CLEAR_GAIN * abs(self.as_it_was), self.spread)

    @property
    def no_worse(self) -> bool:
        """Whether the best attempt's loss is hardly higher than the training's, and by no more than chance."""
        return self.gain >= -min(_NO_WORSE * abs(self.as_it_was), self.chance)

    def in_words(self) -> str:
        made = f"{self.as_it_was:.4g} as it was" if math.isfinite(self.as_it_was) else "not finite as it was"
        tried = ", ".join(
            f"{name} {loss:.4g}" if math.isfinite(loss) else f"{name} diverges" for name, loss in self.losses().items()
        )
        return f"loss of the {self.batches} batches since step {self.snapshot.step} run again: {made}; {tried}"


def name_of(attempt: Attempt) -> str:
    return f"rate x{attempt.factor:.3g}" + (" without the bad batches" if attempt.without else "")


@dataclass(slots=True)
class _Batches:
    """What is run again: the micro-batches of each step, and what is known of their losses."""

    steps: list[list[BufferedBatch]]
    before: list[float]
    out: set[int] = field(default_factory=set)
    """Places of steps whose loss under the snapshot's weights is out of all proportion, or not finite."""
    onset: int = 0
    """The place that a smaller rate begins at: a little before the training's own loss rose."""

    def compared(self) -> list[int]:
        """The places that attempts are compared at: the last third of those in proportion."""
        inside = [place for place in range(len(self.steps)) if place not in self.out]
        return inside[-max(FEWEST // 2, len(inside) // 3) :]

    def keys(self, places: Iterable[int]) -> frozenset[str]:
        """The names of the micro-batches at these places."""
        return frozenset(each.key for place in places for each in self.steps[place])


class NotRestorable(Exception):
    """The loss function reaches something that could not be restored after it is called again."""


class RateTrial:
    """Runs trials for one guard."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._program, self._forward, self._state = parts.program, parts.forward, parts.state
        self._reached: ReachedState | None = None
        self._has_effect = False
        """Whether the program's step leaves traces that cannot be undone, such as a line in a file."""

    def run(
        self, snapshots: Sequence[Snapshot], buffered: Sequence[BufferedBatch], recorded: Mapping[int, float],
        full: float, factors: Sequence[float], ledger: Ledger, *, tell: bool = True,
    ) -> Trial | None:  # fmt: skip
        """Try `factors` (falling) from the best of the snapshots; None if that cannot be done or none comes to its end.
        `recorded` are the losses that the training itself had, by step, with the factor `full`."""
        began = time.perf_counter()
        if tell:
            what = "trying smaller learning rates on the batches since a snapshot; the state is restored afterwards"
            self._parts.log.show(what, kind="rate_trial")
        found: Trial | None = None
        with suppress(UserCodeError, NotRestorable), self.aside(supervised=False), self._without_step_hooks():
            try:
                found = self._try(snapshots, buffered, recorded, full, factors, ledger, began)
            except Exception as error:
                if not out_of_memory(error):
                    raise
        return found

    def objective(self, snapshots: Sequence[Snapshot], buffered: Sequence[BufferedBatch]) -> bool:
        """Whether the gradients of the first steps since a snapshot are those of their loss: else a loss that rises
        shows nothing. False as well where it cannot be seen. Some tens of forward passes."""
        since = by_step([each for each in buffered if each.step >= snapshots[0].step])
        whole = [step for step in since if len(step) == self._program.accumulate]
        descend = False
        with suppress(UserCodeError, NotRestorable), self.aside():
            try:
                self._go_to(snapshots[0].tree)
                descend = descends(self._program, (whole or since)[:_ASKED])
            except Exception as error:
                if not out_of_memory(error):
                    raise
        return descend

    @contextmanager
    def aside(self, *, supervised: bool = True) -> Iterator[None]:
        """Within the block steps can be run again: everything is afterwards as it was, and what the program prints or
        counts on the way is neither heard nor kept. Raises NotRestorable where that cannot be promised: also where a
        step that is `supervised` is about to write to a file, say; then none is run again in this training."""
        if self._has_effect:
            raise NotRestorable
        try:
            reached = reached_by(self._program, self._state.live())
        except Exception as error:
            raise NotRestorable from error
        if not reached.exact:
            raise NotRestorable
        self._reached = reached
        objects = (self._program.model, *self._program.beside)
        entry, here = self._forward.take(), copy_tree(self._state.live(), lambda t: t.to("cpu", copy=True))
        grads = [(p, p.grad) for p in self._program.parameters if p.grad is not None]
        with rerun(), muted(), quiet(), preserved_attributes(objects), torch.inference_mode(False):
            try:
                with calls_supervised(reached) if supervised else nullcontext():
                    yield
            except HasEffect as effect:
                self._has_effect = True
                self._parts.log.journal.event("steps_not_run_again", detail=str(effect))
                raise NotRestorable from effect
            finally:
                self._go_to(here)
                self._forward.restore(entry)
                self._reached = None
                for parameter, grad in grads:
                    parameter.grad = grad

    def _go_to(self, tree: Any) -> None:
        """Everything as in this state; what the loss function reaches elsewhere is as it was before the trial."""
        if self._reached is not None:
            self._reached.restore()
        self._program.forget()
        self._state.restore(tree)

    def _try(
        self, snapshots: Sequence[Snapshot], buffered: Sequence[BufferedBatch], recorded: Mapping[int, float],
        full: float, factors: Sequence[float], ledger: Ledger, began: float,
    ) -> Trial | None:  # fmt: skip
        chosen = self._best_snapshot(snapshots, buffered, recorded)
        if chosen is None:
            return None
        snapshot, batches = chosen
        if not self._same_again(snapshot, batches, recorded, ledger.but(lr_factor=full)):
            return None
        places = batches.compared()
        attempts: list[Attempt] = []
        if batches.out and len(batches.out) <= _SHARE_BAD * len(batches.steps):
            attempts.append(self._attempt(snapshot, batches, ledger, full, full, without=True))
        attempts += self._search(snapshot, batches, ledger, full, list(factors), places)
        scores = {name_of(attempt): _score(attempt.losses, places) for attempt in attempts}
        best = min(attempts, key=lambda attempt: scores[name_of(attempt)], default=None)
        if best is None or not math.isfinite(lowest := scores[name_of(best)]):
            return None
        if attempts[0].without and scores[name_of(attempts[0])] <= lowest + _AS_GOOD * abs(lowest):
            best = attempts[0]  # the program's own rate holds
        steps = batches.steps
        kept = [recorded.get(steps[place][0].step, math.nan) for place in places]
        pairs = [(a, best.losses[place]) for a, place in zip(kept, places, strict=True) if not math.isnan(a)]
        made, lowest = statistics.fmean(a for a, _ in pairs) if pairs else math.nan, scores[name_of(best)]
        if made > lowest:
            again = _score(self._attempt(snapshot, batches, ledger, full, full).losses, places)
            if again - lowest < _RECURS * (made - lowest):
                return None  # it was not the rate: the loop has changed the weights between the steps, for example
        sound = {place for place, loss in enumerate(best.losses) if math.isfinite(loss)} - batches.out
        return Trial(
            snapshot=snapshot,
            batches=sum(map(len, steps)),
            attempts=[(each, scores[name_of(each)]) for each in attempts],
            best=best,
            full=full,
            before=statistics.fmean(batches.before[place] for place in places),
            onset=steps[batches.onset][0].step,
            as_it_was=made,
            share_better=sum(b < a for a, b in pairs) / len(pairs) if pairs else math.nan,
            left_out=batches.keys(batches.out) if best.without else frozenset(),
            sound=batches.keys(sound),
            seconds=time.perf_counter() - began,
            spread=_spread([b for _, b in pairs]),
            chance=_chance([a - b for a, b in pairs]),
        )

    def _best_snapshot(
        self, snapshots: Sequence[Snapshot], buffered: Sequence[BufferedBatch], recorded: Mapping[int, float]
    ) -> tuple[Snapshot, _Batches] | None:
        """The snapshot whose weights do best on the newest batches that are in proportion, and the batches since it."""
        found: list[tuple[Snapshot, _Batches]] = []
        for snapshot in snapshots:
            steps = by_step([each for each in buffered if each.step >= snapshot.step])
            earlier = by_step([each for each in buffered if each.step < snapshot.step])[-_EARLIER:]
            before = self._losses(snapshot, steps)
            usual = self._losses(snapshot, earlier) if len(earlier) == _EARLIER else before
            batches = _Batches(steps, before, _out_of_proportion(before, usual))
            if len(steps) - len(batches.out) >= FEWEST:
                batches.onset = _onset(batches, recorded)
                found.append((snapshot, batches))
        out = {batches.steps[place][0].step for _, batches in found for place in batches.out}

        def newest(each: tuple[Snapshot, _Batches]) -> float:
            batches = each[1]
            inside = [b for b, step in zip(batches.before, batches.steps, strict=True) if step[0].step not in out]
            return statistics.median(inside[-FEWEST:]) if inside else math.inf

        return min(found, key=newest, default=None)

    def _losses(self, snapshot: Snapshot, steps: Sequence[Sequence[BufferedBatch]]) -> list[float]:
        """The loss of each step with the weights of a snapshot; NaN where the program leaves a batch out."""
        self._go_to(snapshot.tree)
        losses = []
        for step in steps:
            made = []
            for each in step:
                if each.rng is not None:
                    put_rng(each.rng)
                with torch.enable_grad():
                    terms = self._program.forward(each.fetch())
                made.append(math.nan if terms is None else float(terms["loss"].detach()))
            losses.append(statistics.fmean(made))
        return losses

    def _same_again(self, snapshot: Snapshot, batches: _Batches, recorded: Mapping[int, float], force: Ledger) -> bool:
        """Whether the first steps, run again as they were, have the losses that were recorded: else the loss function
        is another one by now, or needs something that only its loop has, and a trial would say nothing."""
        self._go_to(snapshot.tree)
        for step in batches.steps[:_CONTROLLED]:
            known = recorded.get(step[0].step)
            if known is None:
                return True  # it was refused: from here on nothing was recorded
            loss, _ = self._step(step, force)
            if not abs(loss - known) <= _SAME * max(abs(loss), abs(known)):
                return False
        return True

    def _search(
        self, snapshot: Snapshot, batches: _Batches, ledger: Ledger, full: float, factors: list[float],
        places: list[int],
    ) -> Iterator[Attempt]:  # fmt: skip
        """Every second factor, until it gets worse; then the neighbours of the best."""
        best, lowest, tried = -1, math.inf, set[int]()
        for index in range(0, len(factors), 2):
            attempt = self._attempt(snapshot, batches, ledger, full, factors[index])
            tried.add(index)
            yield attempt
            score = _score(attempt.losses, places)
            if score < lowest:
                best, lowest = index, score
            elif math.isfinite(lowest):
                break
        for index in (best - 1, best + 1):
            if best >= 0 and 0 <= index < len(factors) and index not in tried:
                yield self._attempt(snapshot, batches, ledger, full, factors[index])

    def _attempt(
        self, snapshot: Snapshot, batches: _Batches, ledger: Ledger, full: float, factor: float, *,
        without: bool = False,
    ) -> Attempt:  # fmt: skip
        """Run the batches, from the onset on with this rate. Ends early where three steps in a row are not finite, or
        where the loss has long been far above that under the snapshot's weights."""
        self._go_to(snapshot.tree)
        losses: list[float] = []
        bad = 0
        for place, step in enumerate(batches.steps):
            if without and place in batches.out:
                losses.append(math.nan)
                continue
            loss, applied = self._step(step, ledger.but(lr_factor=full if place < batches.onset else factor))
            losses.append(loss)
            bad = 0 if applied or place in batches.out else bad + 1
            if bad == _BAD_IN_A_ROW or _runs_away(losses, batches):
                break
        return Attempt(factor, without, losses)

    def _step(self, step: Sequence[BufferedBatch], force: Ledger) -> tuple[float, bool]:
        """One update; its loss, and whether it could be made. Reads the device."""
        program, parts = self._program, self._parts
        made = []
        for each in step:
            if each.rng is not None:
                put_rng(each.rng)
            with torch.enable_grad():
                terms = program.micro(each.fetch())
            if terms is not None:
                made.append(float(terms["loss"].detach()))
        if not made:
            return math.nan, True  # left out by the program, as it was the first time
        program.unscale()
        gradients = parts.probe.measure()
        finite = all(map(math.isfinite, made))
        fine = finite and (gradients is None or math.isfinite(float(gradients.total)))
        if fine:
            parts.updater(gradients, None, force)
        program.update_scale()
        program.zero_grad()
        if fine and parts.followers.scheduler is not None:
            parts.followers.scheduler.step()
        return statistics.fmean(made), fine or (finite and program.scaler is not None)

    @contextmanager
    def _without_step_hooks(self) -> Iterator[None]:
        """Hooks of others on the optimizers, which would count or log updates that never happened, are not called."""
        kept: list[tuple[Any, dict[Any, Any]]] = []
        for optimizer in self._program.optimizers:
            for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
                hooks = getattr(optimizer, name, None)
                if hooks:
                    kept.append((hooks, dict(hooks)))
                    hooks.clear()
        try:
            yield
        finally:
            for hooks, before in kept:
                with suppress(Exception):
                    hooks.update(before)


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _out_of_proportion(losses: Sequence[float], usual: Sequence[float]) -> set[int]:
    """Places of losses that are not finite, or far from the usual ones."""
    known = [loss for loss in usual if math.isfinite(loss)]
    if not known:
        return set(range(len(losses)))
    middle = statistics.median(known)
    spread = statistics.median(abs(loss - middle) for loss in known)
    limit = _OUT_OF_PROPORTION * max(abs(middle), spread)
    return {place for place, loss in enumerate(losses) if not math.isfinite(loss) or abs(loss - middle) > limit}


def _onset(batches: _Batches, recorded: Mapping[int, float]) -> int:
    """A few places before the first at which the training's own loss is well above that under the snapshot's weights;
    the beginning, where it is at none."""
    usual = [batches.before[place] for place in range(len(batches.steps)) if place not in batches.out]
    limit = _RISEN * _spread(usual)
    for place, step in enumerate(batches.steps):
        known = recorded.get(step[0].step, math.inf)
        if place not in batches.out and not known - batches.before[place] <= limit:
            return max(0, place - _MARGIN)
    return 0


def _spread(losses: Sequence[float]) -> float:
    """The usual deviation of these, by their quartiles; those that are far off say nothing."""
    if len(losses) < 4:
        return 0.0
    low, _, high = statistics.quantiles(losses, n=4)
    return (high - low) / 1.349


def _chance(differences: Sequence[float]) -> float:
    """Twice the standard error of their mean."""
    if len(differences) < 2:
        return 0.0
    return 2.0 * statistics.stdev(differences) / math.sqrt(len(differences))


def _score(losses: Sequence[float], places: Sequence[int]) -> float:
    """The mean loss at these places; infinity for an attempt that did not come so far."""
    if not places or len(losses) <= places[-1]:
        return math.inf
    return statistics.fmean(_finite(losses[place]) for place in places)


def _runs_away(losses: Sequence[float], batches: _Batches) -> bool:
    """Whether the newest losses are all far above those under the snapshot's weights."""
    inside = [place for place in range(len(losses)) if place not in batches.out]
    if len(inside) < _GIVEN_UP_AFTER:
        return False
    newest = inside[-FEWEST:]
    return all(losses[place] - batches.before[place] > _CLEARLY_WORSE * abs(batches.before[place]) for place in newest)
