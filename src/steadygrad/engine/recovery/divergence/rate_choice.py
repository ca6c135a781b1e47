"""The learning rate to go on with after a rollback, and when to change it again; both go by trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....policy.escalation import others_are_due, step_down, with_tried_rate
from ....records import Action, Decision
from ...build_parts import Parts
from ...state.batch_buffer import BatchBuffer
from ...state.snapshot_ring import SnapshotRing
from .rate_trial import RateTrial, Trial

_ENOUGH = 32
"""Steps since a snapshot that other rates are tried on."""
_TIMES = 3.0


class RateChoice:
    """Chooses for one guard."""

    def __init__(
        self, parts: Parts, trial: RateTrial, ring: SnapshotRing | None, kept: Callable[[], BatchBuffer]
    ) -> None:
        self._log, self._barrier, self._consensus = parts.log, parts.barrier, parts.consensus
        self._trial, self._ring, self._kept = trial, ring, kept
        self.shown_by: Trial | None = None
        """The trial that has just demonstrated a divergence."""
        self.chosen_by: Trial | None = None
        """The trial that the rollback under way goes by."""
        self.changed_at = 0
        """The step since which the rate is that of now."""

    def choose(self, decision: Decision) -> Decision:
        """Before a rollback that comes with a smaller learning rate: the decision with the rate that does best on the
        batches since the snapshot. As it is where that cannot be tried."""
        shown, self.shown_by = self.shown_by, None
        self.chosen_by = shown if shown is not None else self._try(decision)
        trial, log = self.chosen_by, self._log
        if trial is None:
            return decision
        factor = trial.best.factor
        log.ledger = with_tried_rate(log.ledger, factor, step=decision.step)
        self.changed_at = trial.onset
        log.journal.event(
            "rate_trial", step=decision.step, snapshot=trial.snapshot.step, batches=trial.batches, losses=trial.losses,
            as_it_was=trial.as_it_was, chosen=factor, seconds=trial.seconds,
        )  # fmt: skip
        actions = tuple(action for action in decision.actions if action is not Action.SCALE_LR)
        without = f", {len(trial.left_out)} batches left out" if trial.left_out else ""
        why = "; ".join(found.detail for found in decision.findings)
        why = why if shown is not None else f"{why}; {trial.in_words()}"
        where = f"rolled back to step {trial.snapshot.step}, learning rate x{factor:.3g}{without}"
        return replace(
            decision, actions=actions if log.ledger.lr_factor == 1.0 else (*actions, Action.SCALE_LR),
            lr_factor=log.ledger.lr_factor, rung=log.ledger.rung,
            reason=f"{where}, chosen by a trial of {trial.seconds:.1f} s: {why}",
        )  # fmt: skip

    def _try(self, decision: Decision) -> Trial | None:
        ledger, factors = self._log.ledger, self._log.policy.trial_rates
        if self._ring is None or not factors or Action.SCALE_LR not in decision.actions or self._consensus.size > 1:
            return None
        if any(found.evidence.get("demonstrated") for found in decision.findings):
            return None  # it was tried then, in vain
        full, kept = ledger.rungs[-1].lr_factor, self._kept()
        nothing: Trial | None = None
        with self._barrier("rate_trial", nothing) as answer:
            tried = [full * factor for factor in factors]
            answer.value = self._trial.run(self._ring.good(), kept.unchanged(), kept.losses, full, tried, ledger)
        return answer.value

    def others_due(self) -> bool:
        """Whether a rate that a trial has chosen has held long enough to try others."""
        return self._ring is not None and others_are_due(self._log.policy, self._log.ledger)

    def at_step(self, trial: Trial, step: int) -> None:
        """Before a step is run again as the trial had it: the rate is the full one up to the onset."""
        factor = trial.full if step < trial.onset else trial.best.factor
        if self._log.ledger.lr_factor != factor:
            self._log.ledger = self._log.ledger.but(lr_factor=factor)

    def try_others(self, step: int) -> bool:
        """Use three times the rate if it does no worse on the batches since a snapshot, or else a third of it if that
        does clearly better. Whether it is another rate now: then a new snapshot is due."""
        log, kept = self._log, self._kept()
        ledger = log.ledger
        assert self._ring is not None
        # All steps since must have been made with the rate of now, to be compared with.
        since = [each for each in self._ring.good() if self.changed_at <= each.step <= step - _ENOUGH][-1:]
        if not since:
            return False
        own, now = ledger.rungs[-1].lr_factor, ledger.lr_factor
        higher, lower = min(_TIMES * now, own), now / _TIMES
        with self._barrier("rate_trial", now) as answer:
            trial = self._trial.run(since, kept.unchanged(), kept.losses, now, [higher], ledger)
            if trial is not None and trial.no_worse:
                answer.value = higher
            elif lower >= own * log.policy.trial_rates[-1]:
                trial = self._trial.run(since, kept.unchanged(), kept.losses, now, [lower], ledger)
                if trial is not None and trial.clearly_better():
                    answer.value = lower
        chosen = answer.value
        if chosen == own:
            log.ledger = step_down(ledger, step=step)
        elif chosen != now:
            log.ledger = ledger.but(lr_factor=chosen, healthy_steps=0)
        else:
            log.ledger = ledger.but(relapses=ledger.relapses + 1, healthy_steps=0)
        log.journal.event("rates_tried", step=step, before=now, after=chosen)
        if chosen != now:
            self.changed_at = step
        return chosen != now
