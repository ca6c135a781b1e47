"""The ledger of a run and the rungs it has climbed.

The ledger is all that the policy remembers of a run. It is frozen and plain: `records.to_plain` writes it into a
checkpoint and `records.from_plain` reads it back, so a resumed run decides like one that was never interrupted.

A rung is one remedy in force. Climbing puts a rung on the stack together with what it changed; a healthy stretch takes
the topmost one off again and gives back exactly what was there before. Nothing is multiplied back up, so after the last
rung the learning rate's factor is 1.0 to the bit.

Host only: no tensor, no synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..records import Action
from .presets import Capabilities, Policy

APPLIED, SKIPPED, OVERFLOWED = "a", "s", "o"
_MAX_BACKOFF = 5
RATE_RAMP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One remedy in force, with what was in force before it."""

    action: Action
    step: int
    lr_factor: float = 1.0
    clip_factor: float = 1.0
    dropped_terms: tuple[str, ...] = ()
    widened: bool = False
    rate_held: bool = False
    tried: bool = False
    """A trial has chosen its learning rate, and only another one raises it."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What has become of the run so far. `steps == applied + skipped`; `overflows` are the skips that are normal life
    of a loss scale and count against no budget.

    Without slots, so that `but` can copy it in a microsecond: it is copied once a step.
    """

    steps: int = 0
    applied: int = 0
    skipped: int = 0
    overflows: int = 0
    streak: int = 0
    """Bad steps in a row that count."""
    recent: str = ""
    """One letter a settled step, the last ones only: a applied, s skipped, o refused by the loss scale."""
    spikes: tuple[int, ...] = ()
    """Steps refused as spikes within the last stretch of `recovery_steps`."""
    failing_terms: tuple[str, ...] = ()
    rate: float = 0.0
    """The learning rate of the last applied update."""
    rate_rises: int = 0
    """Applied updates in a row at which the program had raised its learning rate."""
    term_streak: int = 0
    """How often in a row exactly `failing_terms` were the only bad ones."""
    rungs: tuple[Rung, ...] = ()
    lr_factor: float = 1.0
    clip_factor: float = 1.0
    dropped_terms: tuple[str, ...] = ()
    widened: bool = False
    rate_held: bool = False
    """A learning rate that is no number is replaced by its last finite value."""
    healthy_steps: int = 0
    healthy_since: int | None = None
    relapses: int = 0
    last_recovery_step: int | None = None
    rollbacks: int = 0
    """Rollbacks since the run was last on firm ground: no rung in force, and a healthy stretch behind it. One for state
    that is not finite counts anew after as many healthy steps as bad ones would halt the run."""
    rollbacks_total: int = 0
    last_rollback_step: int | None = None
    first_bad_step: int | None = None
    last_bad_step: int | None = None
    halted: bool = False

    def but(self, **changes: Any) -> Ledger:
        """This ledger with some fields changed; `dataclasses.replace`, but cheap."""
        ledger = object.__new__(Ledger)
        ledger.__dict__.update(self.__dict__, **changes)
        return ledger

    @property
    def raises_rate(self) -> bool:
        """Whether the program drives its learning rate up from update to update, as a warm-up and a search for the
        largest one do: the end of a search is bad on purpose."""
        return self.rate_rises >= RATE_RAMP

    @property
    def rung(self) -> int:
        """How many remedies are in force."""
        return len(self.rungs)

    @property
    def success_rate(self) -> float:
        """Share of the steps that were applied, leaving out those the loss scale refused; 1.0 before the first."""
        counted = self.steps - self.overflows
        return self.applied / counted if counted else 1.0

    def skips_within(self, window: int) -> int:
        """Counted skips among the last `window` settled steps."""
        return self.recent.count(SKIPPED, -window) if window < len(self.recent) else self.recent.count(SKIPPED)


def climb(
    ledger: Ledger,
    action: Action,
    *,
    step: int,
    lr_factor: float | None = None,
    clip_factor: float | None = None,
    drop: tuple[str, ...] = (),
    widen: bool = False,
    hold_rate: bool = False,
) -> Ledger:
    """The ledger with one more rung in force."""
    rung = Rung(action=action, step=step, lr_factor=ledger.lr_factor, clip_factor=ledger.clip_factor,
                dropped_terms=ledger.dropped_terms, widened=ledger.widened, rate_held=ledger.rate_held)  # fmt: skip
    return ledger.but(
        rungs=(*ledger.rungs, rung),
        lr_factor=ledger.lr_factor if lr_factor is None else lr_factor,
        clip_factor=ledger.clip_factor if clip_factor is None else clip_factor,
        dropped_terms=(*ledger.dropped_terms, *(term for term in drop if term not in ledger.dropped_terms)),
        widened=ledger.widened or widen,
        rate_held=ledger.rate_held or hold_rate,
    )


def step_down(ledger: Ledger, *, step: int) -> Ledger:
    """The ledger with its topmost rung taken off and what that rung changed given back."""
    top = ledger.rungs[-1]
    return ledger.but(
        rungs=ledger.rungs[:-1],
        lr_factor=top.lr_factor,
        clip_factor=top.clip_factor,
        dropped_terms=top.dropped_terms,
        widened=top.widened,
        rate_held=top.rate_held,
        healthy_steps=0,
        last_recovery_step=step,
    )


def with_tried_rate(ledger: Ledger, factor: float, *, step: int) -> Ledger:
    """The ledger with the learning rate that a trial has chosen, in place of the smaller one that step `step` asked
    for."""
    top = ledger.rungs[-1] if ledger.rungs else None
    if top is not None and top.action is Action.SCALE_LR and top.step == step:
        ledger = ledger.but(rungs=ledger.rungs[:-1], lr_factor=top.lr_factor)
        top = ledger.rungs[-1] if ledger.rungs else None
    if top is not None and top.tried:
        return ledger.but(lr_factor=factor)
    if factor == ledger.lr_factor:
        return ledger
    climbed = climb(ledger, Action.SCALE_LR, step=step, lr_factor=factor)
    return climbed.but(rungs=(*climbed.rungs[:-1], replace(climbed.rungs[-1], tried=True)))


def others_are_due(policy: Policy, ledger: Ledger) -> bool:
    """Whether a rate that a trial has chosen has held for so long that others should be tried."""
    if not ledger.rungs or not ledger.rungs[-1].tried:
        return False
    return ledger.healthy_steps >= healthy_stretch(policy, ledger) // 2


def healthy_stretch(policy: Policy, ledger: Ledger) -> int:
    """How many healthy steps take one rung off. A remedy that was taken off too early is kept twice as long."""
    return policy.recovery_steps * int(2 ** min(ledger.relapses, _MAX_BACKOFF))


def try_remedy(policy: Policy, ledger: Ledger, action: Action, step: int, can: Capabilities) -> Ledger | None:
    """The ledger with that remedy in force, or None where it is not possible."""
    if action is Action.TIGHTEN_CLIP and can.clip:
        tighter = [factor for factor in policy.clip_ladder if factor < ledger.clip_factor]
        return climb(ledger, action, step=step, clip_factor=tighter[0]) if tighter else None
    if action is Action.SCALE_LR and can.lr:
        factor = ledger.lr_factor * policy.lr_factor
        return climb(ledger, action, step=step, lr_factor=factor) if factor >= policy.min_lr_factor else None
    if action is Action.ROLLBACK and can.rollback and ledger.rollbacks < policy.max_rollbacks:
        return ledger
    if action is Action.DROP_TERM:
        left = set(can.terms) - set(ledger.dropped_terms)
        drop = tuple(term for term in ledger.failing_terms if term in left)
        return climb(ledger, action, step=step, drop=drop) if drop and left - set(drop) else None
    if action is Action.WIDEN_PRECISION and can.widen and not ledger.widened:
        return climb(ledger, action, step=step, widen=True)
    return None


def note_relapse(policy: Policy, ledger: Ledger, step: int) -> Ledger:
    """The ledger, which notes a relapse if a rung was taken off only lately."""
    last = ledger.last_recovery_step
    if last is None or step - last > healthy_stretch(policy, ledger):
        return ledger
    return ledger.but(relapses=ledger.relapses + 1, last_recovery_step=None)


def in_words(action: Action, ledger: Ledger) -> str:
    """What was done, as the beginning of a reason."""
    match action:
        case Action.TIGHTEN_CLIP:
            return f"batch skipped, clip tightened to x{ledger.clip_factor:g}"
        case Action.SCALE_LR:
            return f"batch skipped, learning rate x{ledger.lr_factor:g}"
        case Action.DROP_TERM:
            return f"batch skipped, loss without {', '.join(ledger.dropped_terms)} from here"
        case Action.WIDEN_PRECISION:
            return "batch skipped, wider precision from here"
        case _:
            return "batch skipped"
