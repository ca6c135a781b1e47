"""Dropout or batch normalisation is in evaluation mode while training goes on.

What it sees
    Two updates in a row were made from passes of a model in evaluation mode that has dropout or batch
    normalisation; or batch normalisation is in evaluation mode with statistics that no data have updated; or all
    dropout went into evaluation mode in the middle of training, in parts that are trained, while the model itself is in
    training mode.

Why it hurts
    Without dropout the model overfits; batch normalisation works with old statistics, or with none. Usually a
    validation called `model.eval()` and nothing called `model.train()` again.

Smallest example
    def validate(model): model.eval(); ...
    # fixed
    def validate(model): model.eval(); ...; model.train()

What to do
    Call `model.train()` before training goes on. A part that shall stay in evaluation mode can be set so by itself.

Safety
    It changes nothing. It is reported once in a run. A frozen part or a teacher in evaluation mode inside a model
    in training mode is not reported.

References
    https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY427", "eval_mode_in_training", "Dropout or batch normalisation is in evaluation mode while training goes on."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    recent = record.recent(2)
    if not recent:
        return None
    if all(update.training is False and update.in_eval for update in recent):
        names = recent[-1].in_eval
        what = "the model is in evaluation mode while it is trained"
        more = f"{len(names)} modules act differently in training, the first is {names[0] or 'the model itself'}"
    elif all(update.in_eval for update in recent) and any(update.empty_statistics for update in recent):
        names = next(update.empty_statistics for update in reversed(recent) if update.empty_statistics)
        what = "batch normalisation is in evaluation mode with statistics that were never updated"
        more = f"{len(names)} modules, the first is {names[0]}"
    elif record.dropped and all(update.training and update.dropout is False for update in recent):
        names = recent[-1].in_eval
        what = "all dropout went into evaluation mode in the middle of training, though the model is in training mode"
        more = f"{len(names)} modules, the first is {names[0]}"
    else:
        return None
    return loop_finding(
        RULE,
        record,
        f"{what} ({more})",
        fix="call model.train() before training goes on",
        subject=names[0],
        names=list(names[:16]),
    )


def _record(*, training: bool) -> LoopRecord:
    record = LoopRecord()
    for _ in range(2):
        record.add(UpdateSeen(training=training, in_eval=("drop",)))
    return record


def SPECIMEN() -> LoopRecord:
    return _record(training=False)


def NEAR_MISS() -> LoopRecord:
    """A frozen part keeps its statistics; the model is in training mode."""
    return _record(training=True)
