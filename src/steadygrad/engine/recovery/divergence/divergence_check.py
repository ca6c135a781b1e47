"""Whether a suspected divergence is one: batches are run again, under the weights of now and of a good snapshot.

A loss may rise because the weights ran away, or because the data changed: longer sequences, another phase of a
curriculum, classes that come one after another, two kinds in turn. Data that changed leaves the training useful: on the
newest batches, or on those in between, the weights of now do better than those of the snapshot, even where others are
forgotten. Weights that ran away do worse on all.

Two kinds of suspicion are looked into. A loss that was low and is far above, which a detector reports, must have at
least doubled on most batches, twice with a pause in between. A loss that has not fallen since the start, or has lost
what it had gained, is looked at now and then: it must be higher on most batches, or the weights must have moved far. In
both cases a trial of smaller learning rates on the same batches then has the last word: see `rate_trial`. Where no
trial can be made, a loss that is not recovering by itself is enough for the first kind and nothing is for the second.

The loss must be what the gradients descend, see `descent_check`: else its level shows nothing.

The loss function is the one of now. Where the program has changed its objective since (another sign, scale, coefficient
or temperature), it cannot tell how good weights were for the earlier one: with the weights of a snapshot the batch that
came next must have about the loss that was recorded for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ....detect.detectors.progress import divergence
from ....detect.history import History
from ....policy import Policy
from ....policy.escalation import Ledger
from ....records import Finding, Reading, Severity
from ...build_parts import Parts
from ...fault_barrier import UserCodeError
from ...state.batch_buffer import BatchBuffer, BufferedBatch
from ...state.rng import put_rng
from ...state.snapshot_ring import Snapshot
from ...step.window import out_of_memory
from .rate_trial import NotRestorable, RateTrial, Trial

ASKED = 3
"""Older batches, and as many of the newest, that are evaluated."""
BETWEEN = 6
"""Batches from between them, evenly chosen."""
CONFIRM_AFTER = 32
"""Steps between the first evaluation that shows harm and the one that confirms it."""
PAUSE = 64
"""Steps after an evaluation that shows none before the next suspicion is looked into."""
_NO_WORSE = "batches evaluated again are no worse under the current weights than under the last good snapshot"
_NO_OBJECTIVE = "the gradients are not those of the loss, so its level shows nothing"
_NO_BETTER = "smaller learning rates are no better on the same batches"
RECOVERING = 0.8
"""A loss that has fallen to this share since the first evaluation is recovering by itself, if it is not too far up."""
_FAR = 10.0
_EARLY = 256
"""Up to this step a loss that does not fall is looked into."""
_SHORTLY = 64
"""Before this step the weights must have moved far."""
_EARLY_TRIALS, _MAX_BACKOFF = 2, 16
_GAINED, _FALLS, _LOST = 0.1, 0.2, 0.6
_HARDLY_MOVED, _MOVED = 0.05, 0.5
"""How far the weights have moved, as a share of their size."""
_LEVEL_OF = 16
_OTHER_UNIT = 1000.0
_REGAINED = 0.5
"""The share of what was lost that a smaller rate must have kept."""
NEVER = 1 << 62


class DivergenceCheck:
    """Gets every applied step (`note`); runs batches again between two steps where one is `due`."""

    def __init__(self, parts: Parts, trial: RateTrial, policy: Policy) -> None:
        self._program, self._state = parts.program, parts.state
        self._journal, self._policy, self._trial = parts.log.journal, policy, trial
        self._suspicion: Finding | None = None
        self._reading: Reading | None = None
        self._look_at = 0
        tries = policy.trial_rates and policy.acts and policy.judge_loss_level and parts.consensus.size == 1
        self.next_look = policy.trial_after if tries else NEVER
        """The step at which it is next looked whether the loss has fallen, and has stayed so."""
        self.watching = False
        """Whether a divergence is suspected, or was lately: then every applied step is noted."""
        self._level_at_first: float | None = None
        self._in_vain = 0
        """Trials that showed nothing: the pause after each is twice as long."""
        self.shown_by: Trial | None = None
        """The trial that demonstrated the last divergence."""

    @property
    def open(self) -> bool:
        """Whether a first evaluation showed harm and waits to be confirmed; snapshots from before must be kept."""
        return self._level_at_first is not None

    def note(self, reading: Reading, findings: Sequence[Finding]) -> None:
        """An applied step and what was found. Host only."""
        self._reading = reading
        self._suspicion = next((found for found in findings if found.code == divergence.RULE.code), None)
        self.watching = self._suspicion is not None or self.open
        if not self.watching:
            self._look_at = min(self._look_at, reading.step + 1)

    def due(self, step: int) -> bool:
        if self.open:
            return step >= self._look_at
        if self._suspicion is None:
            return step >= self.next_look
        return step >= self._look_at

    def look(
        self, step: int, snapshots: Sequence[Snapshot], buffer: BatchBuffer, history: History, ledger: Ledger
    ) -> tuple[Reading, Finding] | None:
        """Run batches again; the divergence and its step if it is demonstrated now, else None. `snapshots` are the last
        good one from before it and those since. Ends with state bit for bit as it was. Costs a dozen forward passes,
        and where these show harm, a trial of learning rates."""
        self.shown_by = None
        if self._suspicion is None and not self.open:
            return self._look_quietly(step, snapshots, buffer, history, ledger)
        self.next_look = max(self.next_look, step + 1)
        suspicion, reading, losses = self._suspicion, self._reading, history.recent_losses
        level = statistics.median(losses) if losses else math.nan
        self._look_at = step + PAUSE
        if suspicion is None or reading is None or not snapshots:
            self._level_at_first = None
            return None
        harmed = self._harmed(snapshots, buffer.unchanged(), buffer.losses)
        if not harmed:
            self._doubted(step, suspicion.detail, "it could not be checked" if harmed is None else _NO_WORSE)
            self._level_at_first = None
            return None
        first, self._level_at_first = self._level_at_first, None
        if first is None:
            if not self._trial.objective(snapshots, buffer.unchanged()):
                self._doubted(step, suspicion.detail, _NO_OBJECTIVE)
                self._look_at = step + self._pause(PAUSE)
                return None
            self._level_at_first, self._look_at = level, step + CONFIRM_AFTER
            return None
        good = suspicion.evidence.get("best_level", suspicion.evidence.get("loss_began", math.nan))
        recovering = level <= RECOVERING * first
        if recovering and level - good <= _FAR * abs(good):
            return None
        trial = self._try(snapshots, buffer, ledger)
        lost = trial.as_it_was - trial.before if trial is not None else math.nan
        if trial is not None and trial.clearly_better and trial.gain >= _REGAINED * lost:
            return reading, self._demonstrated(suspicion, trial)
        if recovering:
            self._look_at = step + self._pause(PAUSE)
            return None
        return reading, replace(
            suspicion, severity=Severity.WARNING, evidence={**suspicion.evidence, "demonstrated": True},
            detail=f"{suspicion.detail}; older and newest batches evaluated again have at least twice the loss they "
            f"have with the weights of step {snapshots[0].step}",
        )  # fmt: skip

    def _look_quietly(
        self, step: int, snapshots: Sequence[Snapshot], buffer: BatchBuffer, history: History, ledger: Ledger
    ) -> tuple[Reading, Finding] | None:
        """Whether a loss that has not fallen, or that has lost what it had gained, would be lower with a smaller rate.
        No detector tells of either, for most of such runs are healthy. Host only unless one of them is so."""
        every = self._policy.snapshot_every
        self.next_look = min(2 * step, (step // every + 1) * every)
        suspected = self._suspected(step, snapshots, buffer.losses, history)
        if suspected is None:
            return None
        suspicion, harmful = suspected
        if suspicion.evidence["pattern"] == "stands":
            snapshots = snapshots[:1]  # from before the training: later ones are of the same weights that stand still
        if not harmful and not self._harmed(snapshots, buffer.unchanged(), buffer.losses, doubled=False):
            return None
        if not self._trial.objective(snapshots, buffer.unchanged()):
            self._doubted(step, suspicion.detail, _NO_OBJECTIVE)
            self.next_look = step + self._pause(every)
            return None
        trial = self._try(snapshots, buffer, ledger)
        kept = math.nan if trial is None else trial.before + _REGAINED * max(0.0, trial.as_it_was - trial.before)
        if trial is None or not trial.clearly_better or trial.lowest >= kept:
            self._doubted(step, suspicion.detail, _NO_BETTER)
            pause = self._pause(every)
            if self._in_vain > _EARLY_TRIALS or step > _EARLY:
                self.next_look = step + pause
            return None
        reading = Reading(step=step, loss=history.recent_losses[-1], grad_norm=history.recent_norms[-1])
        return reading, self._demonstrated(suspicion, trial)

    def _suspected(
        self, step: int, snapshots: Sequence[Snapshot], losses: Mapping[int, float], history: History
    ) -> tuple[Finding, bool] | None:
        """The suspicion, and whether harm need not be shown before a trial."""
        best, level, began = history.best_level, history.loss_level, next(iter(history.first_losses), math.nan)
        if best is None or level is None or not snapshots:
            return None
        gained = began - best
        fell = gained > _GAINED * abs(began)
        if fell and level - best > max(_LOST * gained, 3.0 * history.best_spread):
            return divergence.lost_again(step, level, best, history.best_step, began), False
        healing = level <= began and _falls(step, level, losses)
        if fell or step > _EARLY or snapshots[0].step > 0 or healing:
            return None
        suspicion, moved = divergence.stands(step, level, began), self._state.moved_since(snapshots[0].tree)
        if moved >= _MOVED:
            return suspicion, True
        late = moved >= _HARDLY_MOVED and step >= _SHORTLY  # else it is not for too high a rate, or too early to say
        return (suspicion, False) if late else None

    def _pause(self, steps: int) -> int:
        """How long not to look again after one more trial in vain."""
        self._in_vain += 1
        return steps << min(self._in_vain, _MAX_BACKOFF)

    def _try(self, snapshots: Sequence[Snapshot], buffer: BatchBuffer, ledger: Ledger) -> Trial | None:
        if not self._policy.trial_rates:
            return None
        full = ledger.lr_factor
        factors = [full * factor for factor in self._policy.trial_rates]
        return self._trial.run(snapshots, buffer.unchanged(), buffer.losses, full, factors, ledger)

    def _demonstrated(self, suspicion: Finding, trial: Trial) -> Finding:
        self.shown_by = trial
        evidence = {**suspicion.evidence, "demonstrated": True, "tried": True}
        return replace(suspicion, severity=Severity.WARNING, evidence=evidence)

    def _doubted(self, step: int, suspicion: str, why: str) -> None:
        self._journal.event("divergence_not_confirmed", step=step, detail=f"{suspicion}; {why}")

    def _harmed(
        self, snapshots: Sequence[Snapshot], buffered: Sequence[BufferedBatch], recorded: Mapping[int, float],
        *, doubled: bool = True,
    ) -> bool | None:  # fmt: skip
        """Whether most of the older and most of the newest batches do worse now, and none between them is learnt; None
        if it cannot be known."""
        older = [t for t in buffered if t.step <= snapshots[0].step + ASKED][:ASKED]
        newest = [t for t in buffered if t not in older][-ASKED:]
        if len(older) < ASKED or len(newest) < ASKED:
            return None
        between = [t for t in buffered if t not in older and t not in newest]
        asked = [*older, *newest, *between[:: max(1, len(between) // BETWEEN)][:BETWEEN]]
        now: list[float | None] = []
        then: list[float | None] = []
        with suppress(UserCodeError, NotRestorable), self._trial.aside():
            try:
                now = [self._loss(t) for t in asked]
                if all(self._same_objective(snapshot, buffered, recorded) for snapshot in reversed(snapshots)):
                    then = [self._loss(t) for t in asked]
            except Exception as error:
                if not out_of_memory(error):
                    raise
        if len(then) < len(asked):
            return None
        if any(_of_other_sign(recorded.get(t.step), a, b) for t, a, b in zip(asked, now, then, strict=True)):
            return None
        worse = [_worse(a, b, doubled=doubled) for a, b in zip(now, then, strict=True)]
        usual = statistics.median(abs(b or 0.0) for b in then[:ASKED])
        between_them = zip(now[2 * ASKED :], then[2 * ASKED :], strict=True)
        learnt = any(_better(a, b) and not _of_another_unit(b, usual) for a, b in between_them)
        return not learnt and 2 * sum(worse[:ASKED]) > ASKED and 2 * sum(worse[ASKED : 2 * ASKED]) > ASKED

    def _same_objective(
        self, snapshot: Snapshot, buffered: Sequence[BufferedBatch], recorded: Mapping[int, float]
    ) -> bool:
        """Whether the first step after a snapshot has about the loss that was recorded for it, with the random numbers
        of then. Leaves the weights of the snapshot in place."""
        self._state.restore(snapshot.tree)
        near = [t for t in buffered if snapshot.step <= t.step < snapshot.step + ASKED and t.step in recorded]
        losses = [self._loss(t, as_then=True) for t in near[:ASKED] if t.step == near[0].step]
        known = [loss for loss in losses if loss is not None]
        return bool(known) and _about(statistics.fmean(known), recorded[near[0].step])

    def _loss(self, buffered: BufferedBatch, *, as_then: bool = False) -> float | None:
        if as_then and buffered.rng is not None:
            put_rng(buffered.rng)
        with torch.enable_grad():
            terms = self._program.forward(buffered.fetch())
        return None if terms is None else float(terms["loss"].detach())


def _falls(step: int, level: float, losses: Mapping[int, float]) -> bool:
    """Whether the level is well below that of half as many steps."""
    then = [each for at, each in losses.items() if step // 2 - _LEVEL_OF <= at < step // 2]
    return bool(then) and (before := statistics.median(then)) - level > _FALLS * abs(before)


def _about(loss: float, recorded: float) -> bool:
    """Whether they have one sign and differ by a factor of two at the most."""
    return abs(loss - recorded) <= 0.5 * max(abs(loss), abs(recorded))


def _of_other_sign(recorded: float | None, now: Any, then: Any) -> bool:
    """Whether a loss was recorded with a sign that it has neither now nor with the weights from before."""
    if recorded is None or now is None or then is None:
        return False
    return bool(recorded < 0.0 < min(now, then) or max(now, then) < 0.0 < recorded)


def _worse(now: Any, then: Any, *, doubled: bool) -> bool:
    """Whether a loss has grown, with `doubled` by at least its own size."""
    if now is None or then is None or not math.isfinite(then):
        return False
    return not math.isfinite(now) or now - then > (max(abs(then), 1e-12) if doubled else 0.0)


def _of_another_unit(then: float | None, usual: float) -> bool:
    """Whether a loss is so far from the usual that learning such a batch is no use of a training."""
    return then is not None and 0.0 < _OTHER_UNIT * usual < abs(then)


def _better(now: Any, then: Any) -> bool:
    """Whether a loss has fallen: the training since has been of use for that batch."""
    return now is not None and then is not None and now < 0.9 * then
