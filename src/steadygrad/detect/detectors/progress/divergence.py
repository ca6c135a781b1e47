"""The loss is high and stays there.

What it sees
    Two patterns. Lost ground: the median of the last 16 losses is above the best such median by as much again,
    by ten robust standard deviations, and by nine tenths of all the progress made; where the loss never fell to
    half of its start, it must be three times that start. Runaway, which also shows in a short run: each of the
    last three losses and norms is ten times all of the first three.

Why it hurts
    Skipping a batch does not help: the weights have left the good region, mostly because the learning rate is too
    high.

Smallest example
    losses 8.0, 3.1, 2.4, ... 9.7, 9.9, 9.8, 9.8

What to do
    A suspicion alone changes nothing. Where batches can be run again, older and newest ones are evaluated with the
    weights of now and of the last good snapshot; if most of both are at least twice as bad, twice in a row with no
    recovery in between, and the snapshot's weights reproduce the loss that was recorded, the divergence is
    demonstrated. There a loss that has not fallen since the start, or is back where it began, is looked at as well,
    which no finding tells of. The batches since the snapshot are then run again with smaller learning rates, and
    without those whose loss is out of all proportion; the rollback goes on with what does best, and raises the rate
    again when a trial shows that more holds. Raise the warm-up or lower the peak.

Safety
    A warning, not a refusal: the step itself is finite. Rolled back at most a few times, with a pause between, then
    halted.

References
    https://arxiv.org/abs/2309.14322
"""

from __future__ import annotations

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY203", "divergence", "The loss is high and stays there.")
_RUN = 3


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; a few comparisons."""
    if not policy.judge_loss_level:
        return None
    return _runaway(reading, history, policy) or _lost_ground(reading, history, policy)


def _runaway(reading: Reading, history: History, policy: Policy) -> Finding | None:
    if len(history.recent_losses) < 2 * _RUN or len(history.recent_norms) < 2 * _RUN:
        return None
    began, norm_began = max(map(abs, history.first_losses)), max(history.first_norms)
    losses = [history.recent_losses[index] for index in range(-_RUN, 0)]
    norms = [history.recent_norms[index] for index in range(-_RUN, 0)]
    if min(losses) <= policy.runaway_ratio * began or min(norms) <= policy.runaway_ratio * norm_began:
        return None
    return finding(
        RULE,
        reading,
        Severity.WARNING,
        f"loss and gradient run away: {losses[-1]:.4g} after {began:.4g} at the start, norm {norms[-1]:.4g} after "
        f"{norm_began:.4g}",
        subject="loss",
        pattern="runaway",
        loss_level=min(losses),
        loss_began=began,
        norm_began=norm_began,
    )


def _lost_ground(reading: Reading, history: History, policy: Policy) -> Finding | None:
    level, best = history.loss_level, history.best_level
    if level is None or best is None or history.applied < policy.divergence_min_steps or level <= best:
        return None
    began = max(history.first_losses)
    progress = began - best
    if level - best <= max(abs(best), policy.divergence_sigmas * history.best_spread):
        return None
    if progress > abs(best):
        if level - best <= policy.divergence_lost_progress * progress:
            return None
    elif level - began <= 2.0 * abs(began):
        return None  # a loss that never fell much, as of two networks at play, says little by rising a little
    return finding(
        RULE,
        reading,
        Severity.WARNING,
        f"the loss stays at {level:.4g}; best {best:.4g} at step {history.best_step}, {began:.4g} at the start",
        subject="loss",
        pattern="lost_ground",
        loss_level=level,
        best_level=best,
        best_step=history.best_step,
        loss_began=began,
    )


def stands(step: int, level: float, began: float) -> Finding:
    """The finding for a loss that does not fall early in a training, once a trial has shown that it could."""
    return finding(
        RULE,
        Reading(step=step, loss=level),
        Severity.WARNING,
        f"the loss does not fall: {level:.4g} after {step} steps, {began:.4g} at the start",
        subject="loss",
        pattern="stands",
        loss_level=level,
        loss_began=began,
        best_step=0,
    )


def lost_again(step: int, level: float, best: float, best_step: int | None, began: float) -> Finding:
    """The finding for a loss that is back where it began, once a trial has shown that it need not be."""
    return finding(
        RULE,
        Reading(step=step, loss=level),
        Severity.WARNING,
        f"the loss is back at {level:.4g}; best {best:.4g} at step {best_step}, {began:.4g} at the start",
        subject="loss",
        pattern="lost_again",
        loss_level=level,
        best_level=best,
        best_step=best_step,
        loss_began=began,
    )


def _history(losses: list[float]) -> History:
    history = History()
    for step, loss in enumerate(losses):
        history.admit(Reading(step=step, loss=loss, grad_norm=1.0), applied=True)
    return history


def SPECIMEN() -> tuple[Reading, History]:
    falling = [8.0 * 0.95**step + 0.5 for step in range(80)]
    return Reading(step=100, loss=9.8, grad_norm=1.0), _history(falling + [9.8] * 20)


def NEAR_MISS() -> tuple[Reading, History]:
    """Half of the progress is lost for a while, as after a change of data: a person may look, the run goes on."""
    falling = [8.0 * 0.95**step + 0.5 for step in range(80)]
    return Reading(step=100, loss=4.0, grad_norm=1.0), _history(falling + [4.0] * 20)
