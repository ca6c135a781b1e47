"""Gradients were clipped while still multiplied by the loss scale.

What it sees
    The norm that reaches the optimizer is the same number step after step, and that number times the loss scale is
    an ordinary clip threshold. That is what clipping before unscaling leaves behind.

Why it hurts
    After unscaling the gradients are smaller than asked by the loss scale itself, often 65,536 times. Nothing is
    non-finite and nothing is learnt; with SGD the weights all but stand still.

Smallest example
    scaler.scale(loss).backward(); clip_grad_norm_(weights, 1.0); scaler.step(optimizer)
    # fixed
    scaler.scale(loss).backward(); scaler.unscale_(optimizer); clip_grad_norm_(weights, 1.0); scaler.step(optimizer)

What to do
    Call `scaler.unscale_(optimizer)` before clipping, or give `max_grad_norm` to the guard and let it clip.

Safety
    A warning drawn from a pattern: a run that clips every step to a threshold as small as 1/65536 on purpose would
    look the same.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY305", "clipped_before_unscale", "Gradients were clipped while still multiplied by the loss scale.")
_STEPS = 4
_EQUAL = 2e-3
_SMALL = 0.02


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; nothing without a loss scale, else a few comparisons. Speaks once, and again every 100 steps."""
    scale = reading.loss_scale
    if scale is None or scale < 16.0 or len(history.recent_scaled_norms) < _STEPS:
        return None
    if history.applied != _STEPS and history.applied % 100:
        return None
    clips = [history.recent_scaled_norms[index] for index in range(-_STEPS, 0)]
    norms = [history.recent_norms[index] for index in range(-_STEPS, 0)]
    clip = max(clips)
    if clip - min(clips) > _EQUAL * clip or max(norms) > _SMALL or not 0.1 <= clip <= 10.0:
        return None
    return finding(
        RULE,
        reading,
        Severity.WARNING,
        f"gradients were clipped to {clip:.3g} before unscaling, so they are {scale:g} times too small",
        clip=clip,
        grad_norm=norms[-1],
        loss_scale=scale,
    )


def _norms(*norms: float) -> tuple[Reading, History]:
    history = History()
    for step, norm in enumerate(norms):
        history.admit(Reading(step=step, loss=4.0, grad_norm=norm, loss_scale=4096.0), applied=True)
    return Reading(step=len(norms), loss=4.0, grad_norm=norms[-1], loss_scale=4096.0), history


def SPECIMEN() -> tuple[Reading, History]:
    return _norms(*[1.0 / 4096.0] * 4)


def NEAR_MISS() -> tuple[Reading, History]:
    """Clipped to 1.0 at every step, after unscaling."""
    return _norms(1.0, 1.0, 1.0, 1.0)
