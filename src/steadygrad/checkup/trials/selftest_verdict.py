"""What the numbers of a self-test mean. Pure: plain data in, checks and a verdict out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...records import Finding
from ...records.checks.checkup import Advice
from ...records.checks.selftest import Selftest, SelftestCheck, SelftestStep
from ..advice import listed

PASS, DOUBT, FAIL = "pass", "doubt", "fail"
VERDICTS = {PASS: "fit", DOUBT: "doubtful", FAIL: "unfit"}
GROWTH = 100.0
"""A gradient norm so many times the first one within ten steps is on its way to infinity."""
RISE = 2.0
"""A loss so many times what it was on the very batch that was trained on diverges."""

ABOVE_CHANCE = 20.0
"""A first cross-entropy so many times that of chance comes of scores that are huge before anything was learnt."""
HUGE_NORM = 100.0


@dataclass(slots=True)
class SelftestTrial:
    """What was measured."""

    precision: str = "fp32"
    asked_for: int = 10
    first_loss: float = math.nan
    cross_entropy: float = math.nan
    num_classes: int = 0
    """The largest mean cross-entropy of the first batch, and its classes; 0 where there is none."""
    num_parameters: int = 0
    num_trainable: int = 0
    num_tensors: int = 0
    without_gradient: list[str] = field(default_factory=list)
    zero_gradient: list[str] = field(default_factory=list)
    bad_gradient: list[str] = field(default_factory=list)
    not_in_optimizer: list[str] = field(default_factory=list)
    repeats: bool = True
    steps: list[SelftestStep] = field(default_factory=list)
    unmoved: list[str] = field(default_factory=list)
    bad_weights: list[str] = field(default_factory=list)
    bad_weights_step: int = 0
    loss_afterwards: float = math.nan
    raised: str = ""
    idle: list[str] = field(default_factory=list)
    """Tensors of members of a list of alternatives, such as experts, that no row reached."""
    warms_up: list[dict[str, Any]] = field(default_factory=list)
    """Groups whose rate a scheduler has set to zero for the first step."""
    advice: tuple[Advice, ...] = ()
    """What the doctor says of the set-up."""
    silent: list[Finding] = field(default_factory=list)
    """Silent errors that the first batch, the steps or the objects showed."""
    unreturnable: tuple[str, ...] = ()


def judge(trial: SelftestTrial) -> Selftest:
    """The checks in the order in which they matter; the worst outcome is the verdict."""
    checks = tuple(_checks(trial))
    worst = max((check.outcome for check in checks), key=[PASS, DOUBT, FAIL].index)
    notes = []
    if worst != PASS:
        notes += [f"likely cause ({each.code}): {each.detail}; next step: {each.help}" for each in trial.advice]
    if not trial.advice and any(not math.isfinite(step.loss) for step in trial.steps):
        notes.append("next step: steady run YOUR_SCRIPT refuses such a step and names its line, rows and cause")
    if trial.warms_up:
        notes.append("the learning rate starts at zero: the steps were made at 1 % to 10 % of what it rises to")
    if trial.idle:
        notes.append(f"no row of these batches reached {listed(trial.idle)}, while others of their list were used")
    if not trial.repeats:
        notes.append("the same step from the same state gave other bits: the set-up is not deterministic")
    if trial.unreturnable:
        notes.append(f"these attributes changed and cannot be restored: {listed(list(trial.unreturnable))}")
    return Selftest(
        verdict=VERDICTS[worst],
        checks=checks,
        steps=tuple(trial.steps),
        precision=trial.precision,
        num_parameters=trial.num_parameters,
        num_trainable=trial.num_trainable,
        notes=tuple(notes),
    )


def _checks(trial: SelftestTrial) -> Iterator[SelftestCheck]:
    if trial.raised and not trial.num_tensors and math.isnan(trial.first_loss):
        yield _check("it runs", FAIL, f"one forward and backward raised {trial.raised}")
        return
    yield _check("it runs", FAIL if trial.raised else PASS, trial.raised or "one forward and backward")
    yield _finite("the loss is a number", trial.first_loss, f"{trial.first_loss:.6g} on the first batch")
    if (above := _above_chance(trial)) is not None:
        yield above
    yield _gradients(trial)
    yield _moves(trial)
    if trial.silent:
        known = "SY405" if trial.not_in_optimizer else ""
        said = dict.fromkeys(f"{each.detail} ({each.code})" for each in trial.silent if each.code != known)
        if said:
            yield _check("no silent error shows", DOUBT, "; ".join(said))
    yield _stays_finite(trial)
    if len(trial.steps) == trial.asked_for and math.isfinite(trial.loss_afterwards):
        yield _learns(trial)


def _check(name: str, outcome: str, detail: str) -> SelftestCheck:
    return SelftestCheck(name=name, outcome=outcome, detail=detail)


def _finite(name: str, value: float, detail: str) -> SelftestCheck:
    return _check(name, PASS if math.isfinite(value) else FAIL, detail)


def _above_chance(trial: SelftestTrial) -> SelftestCheck | None:
    """A doubt where the first loss is far above that of guessing; None where there is none, or no cross-entropy."""
    norm = trial.steps[0].grad_norm if trial.steps else 0.0
    if trial.num_classes < 2 or not trial.cross_entropy > ABOVE_CHANCE * math.log(trial.num_classes):
        return None
    if not norm > HUGE_NORM:
        return None
    return _check(
        "the first loss is that of chance or better",
        DOUBT,
        f"the cross-entropy begins at {trial.cross_entropy:.6g} where guessing among {trial.num_classes} classes "
        f"gives {math.log(trial.num_classes):.3g}, with a gradient norm of {norm:.3g}: the scores are huge before "
        "anything is learnt; next step: normalise the inputs to about mean 0 and deviation 1, or start the last "
        "layer smaller",
    )


def _gradients(trial: SelftestTrial) -> SelftestCheck:
    name = "every weight gets a gradient"
    without = [each for each in trial.without_gradient if each not in trial.idle]
    zero = [each for each in trial.zero_gradient if each not in trial.idle]
    if not trial.num_tensors:
        return _check(name, FAIL, "nothing in the model can be trained")
    if trial.bad_gradient:
        return _check(name, FAIL, f"gradients of {listed(trial.bad_gradient)} are not finite")
    if len(trial.without_gradient) + len(trial.zero_gradient) >= trial.num_tensors:
        return _check(name, FAIL, "no weight gets a gradient other than zero")
    if without:
        return _check(name, DOUBT, f"{listed(without)} get none")
    if zero:
        return _check(name, DOUBT, f"the gradient of {listed(zero)} was exactly zero in every step")
    used = f"all {trial.num_tensors} trainable tensors"
    return _check(name, PASS, f"{used} that these batches reach" if trial.idle else used)


def _moves(trial: SelftestTrial) -> SelftestCheck:
    name = "the weights move"
    if trial.not_in_optimizer:
        return _check(name, DOUBT, f"{listed(trial.not_in_optimizer)} are in no optimizer")
    if trial.num_tensors and len(trial.unmoved) == trial.num_tensors:
        return _check(name, FAIL, f"no weight changed in {len(trial.steps)} steps: is the learning rate zero?")
    unmoved = [each for each in trial.unmoved if each not in trial.idle]
    if unmoved:
        return _check(name, DOUBT, f"{listed(unmoved)} did not change in {len(trial.steps)} steps")
    if trial.bad_weights:
        return _check(name, FAIL, f"to values that are not finite, in step {trial.bad_weights_step}")
    ratios = [step.update_ratio for step in trial.steps if step.update_ratio]
    typical = sorted(ratios)[len(ratios) // 2] if ratios else 0.0
    if typical > 0.1:
        return _check(name, DOUBT, f"a step changes them by {typical:.1%} of their norm: that is too much")
    return _check(name, PASS, f"by {typical:.1e} of their norm a step")


def _stays_finite(trial: SelftestTrial) -> SelftestCheck:
    name = "loss, norms and weights stay finite"
    if trial.bad_weights:
        which = listed(trial.bad_weights)
        finite = all(math.isfinite(step.grad_norm) for step in trial.steps)
        bad_loss = next((step.loss for step in trial.steps if not math.isfinite(step.loss)), None)
        of = ", from finite gradients" if finite else f", from a loss of {bad_loss}" if bad_loss is not None else ""
        return _check(name, FAIL, f"{which} became non-finite in step {trial.bad_weights_step}{of}")
    for step in trial.steps:
        if not math.isfinite(step.loss):
            return _check(name, FAIL, f"the loss is {step.loss} in step {step.step}")
        if not math.isfinite(step.grad_norm) and step.loss_scale is None:
            return _check(name, FAIL, f"the gradient norm is {step.grad_norm} in step {step.step}")
    refused = [step for step in trial.steps if not step.landed]
    if len(refused) > len(trial.steps) // 2:
        return _check(name, DOUBT, f"{len(refused)} of {len(trial.steps)} steps overflowed under the loss scale")
    norms = [step.grad_norm for step in trial.steps if math.isfinite(step.grad_norm)]
    if norms and norms[0] > 0 and max(norms) > GROWTH * norms[0]:
        return _check(name, DOUBT, f"the gradient norm grew from {norms[0]:.3g} to {max(norms):.3g}")
    span = f"norms {min(norms):.3g} to {max(norms):.3g}" if norms else "no gradient"
    return _check(name, PASS, f"{len(trial.steps)} steps, {span}")


def _learns(trial: SelftestTrial) -> SelftestCheck:
    name, first, last = "the loss of the first batch falls", trial.first_loss, trial.loss_afterwards
    words = f"from {first:.6g} to {last:.6g}"
    if math.isfinite(first) and first > 0 and last > RISE * first:
        return _check(name, FAIL, f"it diverges: {words}")
    if trial.warms_up and abs(last - first) <= 0.01 * abs(first):
        return _check(name, PASS, f"{words}, at the small rates of a warm-up")
    if not last < first:
        return _check(name, DOUBT, f"it did not: {words}")
    return _check(name, PASS, words)
