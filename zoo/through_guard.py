"""The zoo through the front door: every case whose loop a guard can own is driven by a real `sg.Guard`.

    python -m zoo.through_guard                      # all such cases, scored like any tool
    python -m zoo.through_guard --only '2*.py' --json OUT

The patients of `patients.py` show what the clinic can do with a loop taken apart; this shows what a user of the guard
is told. What the guard cannot own is left out and counted: a loop with a scaling, skipping or scrubbing of its own.
A silent trouble is found when the guard says anything of it (a finding of the vitals); the clinic is asked where the
guard asks it: after a refusal, and of what the vitals warn of.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .truth import LEFT_OUT, Answer


def _grave(findings: Any) -> list[Any]:
    """What is more than a note for the record."""
    return [found for found in findings if found.severity.value != "note"]


def why_not(case: Any) -> str | None:
    """What this loop does that a guard does not do for it; None where a guard can own it."""
    reasons = {
        "no optimizer": case.optimizer is None,
        "driven by a trainer": case.loss_fn is None or not case.batches,
        "a loss scale of its own": case.static_scale is not None,
        "clips scaled gradients": case.clip_before_unscale,
        "skips by a rule of its own": case.skip_nonfinite is not None,
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
        with torch.autocast("cpu", dtype=case.autocast):
            return case.loss_fn(model, batch)

    return loss_fn


def guard(case: Any) -> Answer:
    """The case under a guard until its first incident or warning, and what the guard says of it."""
    import steadygrad as sg

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
            if warned is None and _grave(owner.vitals):
                warned = index
    if owner.incidents:
        first = owner.incidents[0]
        # Silent trouble is told by the vitals at once and explained by the clinic a step later.
        return _told(first, warned if first.symptom == "silent" and warned is not None else index, gone_back)
    if warned is not None:
        found = _grave(owner.vitals)
        return Answer(alarm_step=warned, symptom="silent", because=f"{found[0].code} {found[0].detail}")
    return Answer()


def _told(incident: Any, index: int, gone_back: bool) -> Answer:
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return Answer(alarm_step=index, symptom=incident.symptom)
    origin = diagnosis.origin
    # Weights that an update makes bad show in the step after it; the guard then goes back and catches that update.
    caught = gone_back and diagnosis.phase == "optimizer" and origin is not None and origin.op is not None
    return answer_of(diagnosis, index - 1 if caught else index)


def answer_of(diagnosis: Any, step: int) -> Answer:
    """A diagnosis in the words of the scorer."""
    origin = diagnosis.origin
    return Answer(
        alarm_step=step,
        symptom=diagnosis.symptom,
        phase=diagnosis.phase,
        op=origin.op if origin else None,
        module=origin.module if origin else None,
        lines=list(origin.stack) if origin else [],
        rows=list(diagnosis.rows) if diagnosis.rows is not None else None,
        cause=diagnosis.cause.slug if diagnosis.cause else None,
        verified=[trial.remedy.slug for trial in diagnosis.remedies],
        because=diagnosis.because,
    )


def drivable(path: Path) -> bool:
    """Whether a guard can own this case's loop."""
    from .patients import load_case

    torch.manual_seed(0)
    return why_not(load_case(str(path)).make()) is None


def main(arguments: list[str] | None = None) -> int:
    from . import score

    words = list(sys.argv[1:] if arguments is None else arguments)
    return score.main([*words, "--tools", "guard"])


if __name__ == "__main__":
    raise SystemExit(main())
