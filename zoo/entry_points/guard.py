"""`sg.Guard` on every case whose loop it can own, and what its user is told.

A loop with a scaling, skipping or scrubbing by its own rules is left out and counted. A silent problem is detected when
the guard reports anything of it (a finding of the sampled checks).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ..truth import LEFT_OUT, Answer, Subject
from .told import answer_of_incident, answer_of_warning, warnings_of


def why_not(case: Any) -> str | None:
    """What this loop does that a guard does not do for it; None where a guard can own it."""
    reasons = {
        "no optimizer": case.optimizer is None,
        "driven by a trainer": case.loss_fn is None or not case.batches,
        "scales its loss by hand": case.static_scale is not None,
        "clips scaled gradients": case.clip_before_unscale,
        "skips by its own rule": case.skip_nonfinite is not None,
        "scrubs its gradients": case.zero_nan_grads,
        "changes gradients after backward": case.after_backward is not None,
    }
    return next((reason for reason, true in reasons.items() if true), None)


def make_guard(case: Any, **options: Any) -> Any:
    """The guard a user of this loop would make."""
    import steadygrad as sg

    loss_fn: Callable[[Any, Any], Any] = case.loss_fn
    precision = "fp32"
    if case.autocast is not None and (case.scaler is not None or case.autocast is torch.bfloat16):
        precision = {torch.float16: "fp16", torch.bfloat16: "bf16"}[case.autocast]
    elif case.autocast is not None:
        loss_fn = _under_autocast(case)  # float16 without a scaler is the user's own doing
    return sg.Guard(
        case.model,
        case.optimizer,
        loss_fn,
        max_grad_norm=case.clip_norm,
        scheduler=case.scheduler,
        precision=precision,
        scaler=case.scaler,
        accumulate=case.accumulation,
        **options,
    )


def _under_autocast(case: Any) -> Callable[[Any, Any], Any]:
    def loss_fn(model: Any, batch: Any) -> Any:
        with torch.autocast(getattr(case, "device", "cpu"), dtype=case.autocast):
            return case.loss_fn(model, batch)

    return loss_fn


def guard(subject: Subject) -> Answer:
    """The case under a guard until its first incident or warning, and what the guard says of it."""
    import steadygrad as sg

    case = subject.case
    if (reason := why_not(case)) is not None:
        return Answer(error=f"{LEFT_OUT} {reason}")
    case.model.train()
    with make_guard(case) as owner, contextlib.suppress(sg.TrainingHalted):
        warned: int | None = None
        gone_back = False
        for index, batch in enumerate(case.batches):
            if case.before_step:
                case.before_step(case, index)
            outcome = owner.step(batch)
            gone_back = gone_back or outcome.rolled_back_to is not None
            if outcome.accumulating:
                continue  # whoever looks at a model in the middle of a window has it tidied up first
            if owner.incidents:
                break
            if warned is None and warnings_of(owner.vitals):
                warned = index
    if owner.incidents:
        first = owner.incidents[0]
        # A silent problem is found by the sampled checks at once and diagnosed a step later.
        return _told(first, warned if first.symptom == "silent" and warned is not None else index, gone_back)
    if warned is not None:
        return answer_of_warning(warnings_of(owner.vitals)[0], warned)
    return Answer()


def _told(incident: Any, index: int, gone_back: bool) -> Answer:
    diagnosis = incident.diagnosis
    origin = diagnosis.origin if diagnosis is not None else None
    # Weights that an update makes bad show in the step after it; the guard then goes back and catches that update.
    caught = gone_back and origin is not None and diagnosis.phase == "optimizer" and origin.op is not None
    return answer_of_incident(incident, index - 1 if caught else index)
