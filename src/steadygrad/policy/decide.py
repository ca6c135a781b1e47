"""The policy: a pure function from what was found, and what happened so far, to what is to be done.

    decision, ledger = decide(policy, ledger, reading, findings, can=capabilities)

It names actions and performs none. A non-finite value is proof: the update is refused, and a streak of them escalates
(roll back with a smaller learning rate, drop a loss term, widen the precision, halt). A finite value is no proof:
spikes are recorded and applied, and a divergence is acted on only if its finding says that it was demonstrated.
`Policy` holds every number; three presets are named:

- `observe` changes nothing, not even to refuse a non-finite update: findings are journaled and training is exactly
  what it would be alone. It is the only preset that lets a bad update be applied.
- `balanced` is the default: only non-finite updates are refused.
- `ultra_conservative` also refuses spikes and every gradient norm above an absolute 2.0, tightens the clip and lowers
  the learning rate in streaks, and waits longer before it relaxes.

Host only: no tensor, no synchronisation, no communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..records import Action, Decision, Finding, Reading, Severity
from .escalation import (
    APPLIED,
    OVERFLOWED,
    RATE_RAMP,
    SKIPPED,
    Ledger,
    climb,
    healthy_stretch,
    in_words,
    note_relapse,
    step_down,
    try_remedy,
)
from .escalation import Rung as Rung
from .presets import PRESETS as PRESETS
from .presets import Capabilities as Capabilities
from .presets import Policy as Policy
from .presets import Suggested as Suggested

_POISONED = frozenset({"SY105", "SY106", "SY107"})
_SPIKES = frozenset({"SY201", "SY202", "SY204"})
RATE = "the learning rate"
"""How it is called in `Reading.bad_options`."""
_TERM, _DIVERGENCE, _COLLAPSE, _OVERFLOW = "SY102", "SY203", "SY301", "SY304"


def decide(
    policy: Policy, ledger: Ledger, reading: Reading, findings: Sequence[Finding], *, can: Capabilities
) -> tuple[Decision, Ledger]:
    """What to do about one step, and the ledger after it. Pure; a healthy step costs a few microseconds.

    A step with a fatal finding, or one the device refused, is never applied unless the policy only observes.
    """
    if not findings and not reading.refused and not ledger.halted:
        return _proceed(policy, ledger, reading, (), "")
    findings = tuple(findings)
    if not policy.acts:
        return _observe(policy, ledger, reading, findings)
    live = tuple(found for found in findings if not _of_dropped_terms(found, ledger))
    codes = {found.code for found in live}
    fatal = any(found.severity is Severity.FATAL for found in live)
    if ledger.halted:
        return _refuse(policy, ledger, reading, findings, live, can)
    if _OVERFLOW in codes and not fatal:
        return _overflow(policy, ledger, reading, findings)
    if fatal or reading.refused or codes & _POISONED:
        return _refuse(policy, ledger, reading, findings, live, can)
    if _demonstrated(live) and (_tried(live) or _cooled_down(policy, ledger, reading.step)):
        return _diverged(policy, ledger, reading, findings, live, can)
    return _proceed(policy, ledger, reading, findings, "; ".join(found.detail for found in live))


def _demonstrated(findings: Sequence[Finding]) -> bool:
    """Whether a divergence was found and batches that were evaluated again confirm it."""
    return any(found.code == _DIVERGENCE and found.evidence.get("demonstrated") for found in findings)


def _tried(findings: Sequence[Finding]) -> bool:
    """Whether a trial has shown what holds: then it need not be waited whether the last rollback helped."""
    return any(found.code == _DIVERGENCE and found.evidence.get("tried") for found in findings)


def _of_dropped_terms(found: Finding, ledger: Ledger) -> bool:
    terms = found.evidence.get("terms", ()) if found.code == _TERM else ()
    return bool(terms) and set(terms) <= set(ledger.dropped_terms)


def _decision(
    policy: Policy, ledger: Ledger, step: int, actions: tuple[Action, ...], findings: tuple[Finding, ...], reason: str
) -> Decision:
    count, window = policy.skips_per_window
    skips = ledger.skips_within(window) if ledger.skipped else 0
    decision = object.__new__(Decision)  # `Decision(...)`, but fast: there is one for each step
    decision.__dict__.update(
        step=step,
        actions=actions,
        findings=findings,
        rung=len(ledger.rungs),
        lr_factor=ledger.lr_factor,
        clip_factor=ledger.clip_factor,
        dropped_terms=ledger.dropped_terms,
        widened=ledger.widened,
        reason=reason,
        budget_left=max(0, min(_streak_limit(policy, ledger) - ledger.streak, count + 1 - skips)),
    )
    return decision


def _remember(policy: Policy, ledger: Ledger, pending_numbers: str) -> str:
    keep = max(policy.skips_per_window[1], policy.success_window)
    return ledger.recent[-keep + 1 :] + pending_numbers if keep > 1 else pending_numbers


def _proceed(
    policy: Policy, ledger: Ledger, reading: Reading, findings: tuple[Finding, ...], reason: str
) -> tuple[Decision, Ledger]:
    step, healthy = reading.step, ledger.healthy_steps + 1
    ledger = ledger.but(
        steps=ledger.steps + 1,
        applied=ledger.applied + 1,
        streak=0,
        term_streak=0,
        recent=_remember(policy, ledger, APPLIED),
        healthy_steps=healthy,
        rate=reading.lr,
        rate_rises=ledger.rate_rises + 1 if reading.lr > ledger.rate else 0,
        healthy_since=step if ledger.healthy_since is None else ledger.healthy_since,
    )
    if (ledger.rungs or ledger.relapses or ledger.rollbacks) and healthy >= healthy_stretch(policy, ledger):
        if ledger.rungs and ledger.rungs[-1].tried:
            ledger = ledger.but(rollbacks=0) if ledger.rollbacks else ledger  # the rate is raised after a trial only
        elif ledger.rungs:
            undone = ledger.rungs[-1].action
            ledger = step_down(ledger, step=step)
            calm = f"{healthy} healthy steps: {undone} undone, {len(ledger.rungs)} remedies still in force"
            reason = f"{calm}; {reason}" if reason else calm
        else:
            ledger = ledger.but(relapses=0, rollbacks=0, healthy_steps=0)
    return _decision(policy, ledger, step, (Action.PROCEED,), findings, reason), ledger


def _observe(
    policy: Policy, ledger: Ledger, reading: Reading, findings: tuple[Finding, ...]
) -> tuple[Decision, Ledger]:
    fatal = any(found.severity is Severity.FATAL for found in findings)
    refused = int(reading.refused)
    ledger = ledger.but(
        steps=ledger.steps + 1,
        applied=ledger.applied + 1 - refused,
        skipped=ledger.skipped + refused,
        streak=ledger.streak + 1 if fatal else 0,
        recent=_remember(policy, ledger, SKIPPED if refused else APPLIED),
        healthy_steps=0 if fatal else ledger.healthy_steps + 1,
    )
    if fatal:
        ledger = _dated(ledger, reading.step)
    reason = "only observing: " + "; ".join(found.detail for found in findings) if findings else "only observing"
    return _decision(policy, ledger, reading.step, (Action.PROCEED,), findings, reason), ledger


def _overflow(
    policy: Policy, ledger: Ledger, reading: Reading, findings: tuple[Finding, ...]
) -> tuple[Decision, Ledger]:
    ledger = ledger.but(
        steps=ledger.steps + 1,
        skipped=ledger.skipped + 1,
        overflows=ledger.overflows + 1,
        recent=_remember(policy, ledger, OVERFLOWED),
    )
    reason = "the loss scale was too large for this batch; the scale falls, and the skip counts against no budget"
    return _decision(policy, ledger, reading.step, (Action.SKIP,), findings, reason), ledger


def _dated(ledger: Ledger, step: int) -> Ledger:
    first = step if ledger.first_bad_step is None else ledger.first_bad_step
    return ledger.but(first_bad_step=first, last_bad_step=step, healthy_since=None)


def _cooled_down(policy: Policy, ledger: Ledger, step: int) -> bool:
    last = max(ledger.last_rollback_step or 0, ledger.rungs[-1].step if ledger.rungs else 0)
    return last == 0 or step - last >= policy.divergence_cooldown


def _trouble(ledger: Ledger) -> int:
    return max(ledger.streak, len(ledger.spikes))


def _counted(policy: Policy, ledger: Ledger, reading: Reading, live: tuple[Finding, ...]) -> Ledger:
    """The ledger with this step entered as a bad one."""
    step = reading.step
    spikes = tuple(spike for spike in ledger.spikes if step - spike < policy.recovery_steps)
    broken = any(found.severity is Severity.FATAL and found.code not in _SPIKES for found in live)
    if not broken and any(found.code in _SPIKES for found in live):
        spikes = (*spikes, step)
    terms = tuple(str(term) for found in live if found.code == _TERM for term in found.evidence.get("terms", ()))
    same = bool(terms) and terms == ledger.failing_terms
    ledger = ledger.but(
        steps=ledger.steps + 1,
        skipped=ledger.skipped + 1,
        streak=ledger.streak + 1,
        recent=_remember(policy, ledger, SKIPPED),
        spikes=spikes,
        failing_terms=terms,
        term_streak=ledger.term_streak + 1 if same else int(bool(terms)),
        healthy_steps=0,
    )
    return _dated(ledger, step)


def _halt(
    policy: Policy, ledger: Ledger, step: int, findings: tuple[Finding, ...], reason: str
) -> tuple[Decision, Ledger]:
    ledger = ledger.but(halted=True)
    return _decision(policy, ledger, step, (Action.SKIP, Action.HALT), findings, reason), ledger


def _streak_limit(policy: Policy, ledger: Ledger) -> int:
    """How many bad steps in a row halt: more where the program has not made a good update yet, or drives its own
    learning rate up, as a warm-up and a search for the largest rate do."""
    replayable = not ledger.applied or ledger.rate_rises >= RATE_RAMP
    return policy.skip_streak_halt * (policy.start_patience if replayable else 1)


def _streak(policy: Policy, ledger: Ledger, what: str) -> str:
    return f"{ledger.streak} bad steps in a row (limit {_streak_limit(policy, ledger)}): {what}"


def _refuse(
    policy: Policy,
    before: Ledger,
    reading: Reading,
    findings: tuple[Finding, ...],
    live: tuple[Finding, ...],
    can: Capabilities,
) -> tuple[Decision, Ledger]:
    ledger = _counted(policy, before, reading, live)
    step, codes = reading.step, {found.code for found in live}
    what = "; ".join(found.detail for found in live if found.severity is not Severity.NOTE)
    what = what or "the update was refused on the device"
    count, window = policy.skips_per_window
    skips = ledger.skips_within(window)
    if before.halted:
        return _halt(policy, ledger, step, findings, f"already halted; {what}")
    if ledger.streak >= _streak_limit(policy, ledger):
        return _halt(policy, ledger, step, findings, _streak(policy, ledger, what))
    if skips > count:
        reason = f"{skips} of the last {min(window, ledger.steps)} steps were skipped, {count} are allowed: {what}"
        return _halt(policy, ledger, step, findings, reason)
    if codes & _POISONED and not reading.undone:
        if before.healthy_steps >= policy.skip_streak_halt:
            ledger = ledger.but(rollbacks=0)  # the last one helped: this is another fault
        if can.rollback and ledger.rollbacks < policy.max_rollbacks:
            return _rollback(
                policy, ledger, step, findings, f"weights or state are already non-finite, rolling back: {what}"
            )
        if codes & {"SY105", "SY106"}:
            why = f"after {ledger.rollbacks} rollbacks" if can.rollback else "with no good snapshot to go back to"
            return _halt(policy, ledger, step, findings, f"every further step would be computed from it, {why}: {what}")
    lost_rate = any(option.startswith(RATE) for option in reading.bad_options)
    if lost_rate and ledger.applied and not ledger.rate_held and ledger.streak >= policy.hold_rate_after:
        ledger = note_relapse(policy, climb(ledger, Action.SCALE_LR, step=step, hold_rate=True), step)
        reason = f"batch skipped, learning rate held at its last finite value from here: {what}"
        return _decision(policy, ledger, step, (Action.SKIP, Action.SCALE_LR), findings, reason), ledger
    return _remedy(policy, before, ledger, step, findings, codes, can, what, bool(reading.bad_inputs))


def _remedy(
    policy: Policy,
    before: Ledger,
    ledger: Ledger,
    step: int,
    findings: tuple[Finding, ...],
    codes: set[str],
    can: Capabilities,
    what: str,
    bad_inputs: bool,
) -> tuple[Decision, Ledger]:
    """Skip, and whatever the escalation or the evidence asks for besides."""
    if ledger.term_streak >= policy.drop_term_after and len(ledger.failing_terms) == 1:
        wanted: tuple[Action, ...] = (Action.DROP_TERM,)
    elif _COLLAPSE in codes:
        wanted = (Action.WIDEN_PRECISION,)
    else:
        old, new = _trouble(before), _trouble(ledger)
        # A batch that is not finite itself says nothing of the weights or the rate.
        old = new if bad_inputs else old
        wanted = tuple(action for at, action in policy.escalation if old < at <= new)
        if wanted == (Action.TIGHTEN_CLIP,):
            # Where the clip cannot be tightened any more, the next rung is due instead.
            wanted = (Action.TIGHTEN_CLIP, Action.SCALE_LR)
    for action in wanted:
        if action is Action.ROLLBACK and not can.rerun:
            continue  # the weights are good, and updates would be lost
        if (climbed := try_remedy(policy, ledger, action, step, can)) is None:
            continue
        ledger = note_relapse(policy, climbed, step)
        if action is Action.ROLLBACK:
            at_full_rate = ledger.lr_factor == 1.0
            slower = try_remedy(policy, ledger, Action.SCALE_LR, step, can) if at_full_rate else None
            also = (Action.SCALE_LR,) if slower else ()
            reason = f"rolled back after {ledger.streak} bad steps in a row: {what}"
            return _rollback(policy, slower or ledger, step, findings, reason, *also)
        reason = f"{in_words(action, ledger)}: {what}"
        return _decision(policy, ledger, step, (Action.SKIP, action), findings, reason), ledger
    return _decision(policy, ledger, step, (Action.SKIP,), findings, f"batch skipped: {what}"), ledger


def _rollback(
    policy: Policy, ledger: Ledger, step: int, findings: tuple[Finding, ...], reason: str, *also: Action
) -> tuple[Decision, Ledger]:
    ledger = ledger.but(
        rollbacks=ledger.rollbacks + 1,
        rollbacks_total=ledger.rollbacks_total + 1,
        last_rollback_step=step,
    )
    return _decision(policy, ledger, step, (Action.ROLLBACK, *also), findings, reason), ledger


def _diverged(
    policy: Policy,
    before: Ledger,
    reading: Reading,
    findings: tuple[Finding, ...],
    live: tuple[Finding, ...],
    can: Capabilities,
) -> tuple[Decision, Ledger]:
    """Back to a good state, with a smaller learning rate: with the same one the run would diverge again."""
    step, what = reading.step, "; ".join(found.detail for found in live)
    slower = try_remedy(policy, before, Action.SCALE_LR, step, can)
    if can.rollback:
        ledger = _counted(policy, slower or before, reading, live)
        if ledger.streak >= _streak_limit(policy, ledger):
            return _halt(policy, ledger, step, findings, _streak(policy, ledger, what))
        if before.rollbacks >= policy.max_rollbacks:
            return _halt(policy, ledger, step, findings, f"diverged again after {before.rollbacks} rollbacks: {what}")
        also = (Action.SCALE_LR,) if slower else ()
        return _rollback(
            policy, ledger, step, findings, f"rolled back, learning rate x{ledger.lr_factor:g}: {what}", *also
        )
    if slower is None:
        return _proceed(policy, before, reading, findings, f"no snapshot available: {what}")
    decision, ledger = _proceed(policy, slower.but(healthy_steps=0), reading, findings, "")
    reason = f"learning rate x{ledger.lr_factor:g}, no snapshot available: {what}"
    return replace(decision, actions=(Action.SCALE_LR,), reason=reason), ledger
