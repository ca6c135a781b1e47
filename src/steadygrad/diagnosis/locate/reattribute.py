"""Is the op that overflowed the cause, or what it was given? State changed from outside, and outliers in the batch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...detect.tensors.foreign_objects import isinstance
from ...records import Origin
from ..causes.evidence import FLOAT32_MAX, FP16_MAX, Evidence
from ..interventions.state_changes import Reverted, negative_second_moments
from ..replay.batch_tree import walk_batch
from ..replay.replay_observation import absmax
from ..replay.replay_step import CANNOT_RUN, ReplayChange, replay
from ..replay.replayable import Replayable
from .examine import Examination, owner_of
from .external_changes import huge_state

OUTLIER = 1e6
"""A batch entry this many times the usual size of its tensor is an outlier."""
JUMP = 100.0
"""A learning rate this many times the usual has jumped."""
ODD = 20.0
"""Where a batch alone is out of line, an entry this many times as large as any in other batches is why."""
OVERFLOWING = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "mul",
        "pow",
        "add",
        "sub",
        "sum",
        "mean",
        "var",
        "std",
        "mse_loss",
        "native_layer_norm",
        "native_batch_norm",
        "native_group_norm",
        "linalg_vector_norm",
        "norm",
        "cumsum",
        "dot",
        "addcmul",
        "smooth_l1_loss",
        "huber_loss",
    }
)


def sound(replayable: Replayable, change: ReplayChange, *, until: str = "backward") -> bool | None:
    """Whether loss and gradients are finite with this one change, as far as the step is run; None where it cannot."""
    try:
        seen = replay(replayable, change=change, until=until)
    except CANNOT_RUN:
        return None
    finally:
        change.undo(replayable)
    return seen.loss_finite and not seen.bad_gradients


def reattribute_to_state(
    replayable: Replayable, exam: Examination, evidence: Evidence, origin: Origin
) -> tuple[Evidence, Origin]:
    """Trouble that is gone once an out-of-range change between steps is undone was in the state all along."""
    suspects = [change for change in evidence.changes if change.out_of_range]
    if suspects and sound(replayable, Reverted(replayable, {(c.kind, c.name) for c in suspects})):
        change = suspects[0]
        leaf = (change.kind, change.name)
        return as_state(evidence, origin, leaf)
    if evidence.stage == "commit" and evidence.facts.argument_negative:
        negative = [("optimizer", name) for name in negative_second_moments(replayable)]
        if negative:
            return as_state(replace(evidence, bad_before=(*negative, *evidence.bad_before)), origin, negative[0])
    if exam.record is not None and exam.record.op in OVERFLOWING:
        replayable.restore()
        replayable.prepare()
        huge = huge_state(replayable)
        if huge is not None and not (huge[2] > 4 and evidence.blew_up):
            evidence = replace(evidence, huge_state=huge)
            if (before := rate_before_a_jump(replayable)) is not None:
                evidence = replace(evidence, phase="optimizer", op=None, earlier_rate=before[0], rate=before[1])
                return evidence, Origin(phase="optimizer", ordinal=origin.ordinal, inputs=origin.inputs)
            return as_state(evidence, origin, ("parameter", huge[0]))
    return evidence, origin


def rate_before_a_jump(replayable: Replayable) -> tuple[float, float] | None:
    """The usual learning rate and that of the last update, where that one was far above it."""
    *before, last = [0.0, *(r.lr for r in replayable.facts.history if r.step < replayable.facts.step and r.applied)]
    usual = statistics.median(before[1:]) if len(before) > 1 else 0.0
    return (usual, last) if last >= JUMP * usual > 0 else None


def as_state(evidence: Evidence, origin: Origin, leaf: tuple[str, str]) -> tuple[Evidence, Origin]:
    found = Origin(
        phase="state",
        module=owner_of(*leaf),
        tensor=leaf[1].partition("/")[0],
        ordinal=origin.ordinal,
        inputs=origin.inputs,
        outputs=origin.outputs,
    )
    return replace(evidence, phase="state", leaf=leaf, op=None), found


def reattribute_to_batch(
    replayable: Replayable, exam: Examination, evidence: Evidence, origin: Origin
) -> tuple[Evidence, Origin]:
    """A plain product or sum that overflows float32 on an input far beyond the rest: the input is the origin."""
    if origin.phase not in ("forward", "loss", "backward") or not replayable.batches:
        return evidence, origin
    if any(d.num_inf or d.num_nan for d in evidence.inputs):
        return evidence, origin
    batch = replayable.batches[exam.seen.guilty_batch or 0]
    outlier = None
    if evidence.op in OVERFLOWING and not evidence.half:
        outlier = batch_outlier(batch)
    elif evidence.op == "to_copy" and evidence.half and _reads_batch(exam):
        outlier = batch_outlier(batch, times=1e3, beyond=FP16_MAX)  # the entry itself does not fit float16
    elif evidence.op == "to_copy" and _reads_batch(exam):
        outlier = batch_outlier(batch, beyond=FLOAT32_MAX)
    if outlier is None:
        return evidence, origin
    found = replace(origin, phase="data", tensor=outlier[0])  # the operation and its line are where it overflowed
    return replace(evidence, phase="data", op=None, batch_outlier=outlier), found


def _reads_batch(exam: Examination) -> bool:
    return exam.record is not None and any(exam.trace.label(touch)[0] == "batch" for touch in exam.record.reads)


def odd_entry(batch: Any, others: Sequence[Any]) -> tuple[str, tuple[int, ...], float] | None:
    """The entry of this batch, its rows and the value that lie far beyond all that other batches hold in that place."""
    usual: dict[str, float] = {}
    for key, value in (pair for other in others for pair in walk_batch(other)):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            usual[key] = max(usual.get(key, 0.0), absmax(value))
    for key, value in walk_batch(batch):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() and usual.get(key, 0.0) > 0:
            far = ~(value.detach().abs() <= ODD * usual[key])
            rows = far.reshape(value.shape[0], -1).any(1)
            if bool(rows.any()) and not bool(rows.all()):
                return key, tuple(rows.nonzero().flatten().tolist()), absmax(value)
    return None


def batch_outlier(
    batch: Any, *, times: float = OUTLIER, beyond: float = 1e12
) -> tuple[str, tuple[int, ...], float] | None:
    """The batch entry, its rows and the value that dwarfs everything else in it."""
    for key, value in walk_batch(batch):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 4:
            continue
        size = torch.nan_to_num(value.detach().to(torch.float64).abs())
        usual = float(size.median()) or float(size[size > 0].median() if bool((size > 0).any()) else 0.0)
        limit = max(times * usual, beyond)
        if usual > 0 and float(size.max()) > limit and value.dim():
            rows = (size > limit).reshape(value.shape[0], -1).any(1)
            return key, tuple(rows.nonzero().flatten().tolist()), float(size.max())
    return None
