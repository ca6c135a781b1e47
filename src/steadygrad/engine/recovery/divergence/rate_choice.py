"""The learning rate to go on with after a rollback, and when to change it again; both go by trials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ....policy.escalation import others_are_due, step_down, with_tried_rate
from ....records import Action, Cause, Decision, Diagnosis, Remedy
from ....records import Trial as TriedRemedy
from ...build_parts import Parts
from ...state.batch_buffer import BatchBuffer
from ...state.snapshot_ring import SnapshotRing
from .rate_trial import Attempt, RateTrial, Trial, name_of

_ENOUGH = 32
"""Steps since a snapshot that other rates are tried on."""
_TIMES = 3.0
_NEAR_BEST = 0.1
_BAD_STATE = frozenset({"SY105", "SY106", "SY107"})


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
            "rate_trial", step=decision.step, snapshot=trial.snapshot.step, batches=trial.batches,
            losses=trial.losses(), as_it_was=trial.as_it_was, chosen=factor, seconds=trial.seconds,
        )  # fmt: skip
        actions = tuple(action for action in decision.actions if action is not Action.SCALE_LR)
        without = f", {len(trial.left_out)} batches left out" if trial.left_out else ""
        why = "; ".join(found.detail for found in decision.findings)
        where = f"rolled back to step {trial.snapshot.step}, learning rate x{factor:.3g}{without}"
        return replace(
            decision, actions=actions if log.ledger.lr_factor == 1.0 else (*actions, Action.SCALE_LR),
            lr_factor=log.ledger.lr_factor, rung=log.ledger.rung,
            reason=f"{where}, chosen by a trial of {trial.seconds:.1f} s: {why}; {trial.in_words()}",
        )  # fmt: skip

    def _try(self, decision: Decision) -> Trial | None:
        ledger, factors, kept = self._log.ledger, self._log.policy.trial_rates, self._kept()
        top = ledger.rungs[-1] if ledger.rungs else None
        slower = Action.SCALE_LR in decision.actions
        if self._ring is None or not factors or top is None or not (slower or top.tried) or self._consensus.size > 1:
            return None
        if any(found.evidence.get("demonstrated") or found.code in _BAD_STATE for found in decision.findings):
            return None  # it was tried then, in vain; or it is the state that is bad, whatever the rate
        full = top.lr_factor if slower else ledger.lr_factor
        nothing: Trial | None = None
        with self._barrier("rate_trial", nothing) as answer:
            tried, good = [full * factor for factor in factors], self._ring.good()
            if good and self._trial.objective(good, kept.unchanged()):
                answer.value = self._trial.run(good, kept.unchanged(), kept.losses, full, tried, ledger)
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
            trial = self._trial.run(since, kept.unchanged(), kept.losses, now, [higher], ledger, tell=False)
            if trial is not None and trial.no_worse:
                answer.value = higher
            elif lower >= own * log.policy.trial_rates[-1]:
                trial = self._trial.run(since, kept.unchanged(), kept.losses, now, [lower], ledger, tell=False)
                if trial is not None and trial.clearly_better:
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


def diagnosis_of(trial: Trial) -> Diagnosis:
    """What a trial says about a divergence: the learning rate, or the batches that are out of proportion, and what
    each change made of the loss."""
    best = trial.best
    cause = Cause(code="DX401", slug="bad_input") if best.without else Cause(code="DX501", slug="lr_divergence")
    tried = []
    for each, loss in sorted(trial.attempts, key=lambda tried: (tried[0] is not best, tried[1])):
        finite = math.isfinite(loss)
        near = loss - trial.lowest <= _NEAR_BEST * abs(trial.lowest)
        verdict = f"loss {loss:.4g}" if finite else "the loss is not finite"
        tried.append(TriedRemedy(remedy=_as_remedy(each, trial), finite=finite, verified=near, verdict=verdict))
    as_it_was = f"{trial.as_it_was:.4g}" if math.isfinite(trial.as_it_was) else "not finite"
    because = (
        f"the batches since step {trial.snapshot.step} have a loss of {as_it_was} as it was, and of {trial.lowest:.4g} "
        f"when they are run again with {name_of(best)}"
    )
    return Diagnosis(
        symptom="spike", phase="data" if best.without else "optimizer", cause=cause, confidence=0.95, reproduced=(1, 1),
        because=because, trials=tuple(tried),
    )  # fmt: skip


def _as_remedy(attempt: Attempt, trial: Trial) -> Remedy:
    if attempt.without:
        return Remedy(code="RX110", slug="skip_batch", change=f"{len(trial.left_out)} batches left out")
    return Remedy(code="RX141", slug="lr_down", change=f"learning rate times {attempt.factor:.3g}")
