"""Validation runs in training mode: with dropout, or with statistics that absorb the validation data.

What it sees
    Between updates the model was called without gradients and in training mode, on tensors that it is not trained
    on: with batch normalisation once, with dropout alone twice.

Why it hurts
    Scores are measured with units switched off, and running statistics drift towards data that must not be learnt
    from.

Smallest example
    with torch.no_grad(): score(model, validation)
    # fixed
    model.eval()
    with torch.no_grad(): score(model, validation)
    model.train()

What to do
    Call `model.eval()` before a validation and `model.train()` after it; `no_grad` does not do this.

Safety
    It changes nothing. It is reported once in a run. Passes over the training batch itself, several passes over one
    batch (uncertainty by dropout), statistics that are estimated anew, and passes before every update are not
    reported.

References
    https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY428",
    "train_mode_in_eval",
    "Validation runs in training mode: with dropout, or with statistics that absorb the validation data.",
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    last = record.last
    if not last.evaluations or record.count < 2 or 2 * record.quiet_windows < record.count:
        return None
    if not last.moves_statistics:
        repeated = last.evaluations > last.distinct_evaluations  # several draws for one input, on purpose
        gaps = sum(bool(update.evaluations) for update in record.updates)
        if repeated or (gaps < 2 and last.distinct_evaluations < 2):
            return None
    effect = "running statistics absorb these data" if last.moves_statistics else "dropout is on"
    return loop_finding(
        RULE,
        record,
        f"the model was called without gradients in training mode between two updates: {effect}",
        fix="call model.eval() before a validation and model.train() after it",
        calls=last.evaluations,
    )


def _record(*, statistics: bool, distinct: int) -> LoopRecord:
    record = LoopRecord()
    for _ in range(3):
        record.add(UpdateSeen())
    record.add(UpdateSeen(evaluations=8, distinct_evaluations=distinct, moves_statistics=statistics))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(statistics=True, distinct=8)


def NEAR_MISS() -> LoopRecord:
    """Eight passes over one batch with dropout on: an estimate of uncertainty."""
    return _record(statistics=False, distinct=1)
