"""Trouble in which nothing is non-finite: where the gradient was lost, cut off or never asked for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from ...detect.tensors.foreign_objects import isinstance
from ...engine.step.trained_parameters import states_of
from ...records import Origin
from ..interventions.precision_changes import Precision
from ..replay.replay_observation import parameter_names
from ..replay.replay_step import CANNOT_RUN, replay
from ..replay.replayable import Replayable
from ..trace.trace_log import Exit, OpRecord, Touch, Trace
from ..trace.tracer import Tracer
from .origin import ancestors

# Ops whose derivative is zero wherever it exists, and ops whose output is an index.
FLAT = frozenset({"round", "floor", "ceil", "sign", "sgn", "trunc", "heaviside", "bernoulli"})
CHOOSING = frozenset({"argmin", "argmax", "multinomial"})
ORDERING = frozenset({"bucketize", "searchsorted", "argsort", "to_copy"})
"""What leaves an integer of a number: its place in an order, or the number without its fraction."""
PICKING = frozenset({"topk", "sort", "max", "min", "kthvalue", "mode", "median", "cummax", "cummin"})
"""Ops that give values and their places: where only the places are used, no gradient comes back."""
COMPARING = frozenset({"gt", "ge", "lt", "le"})
_DETACHING = frozenset({"detach", "detach_"})


def common_module(names: Sequence[str]) -> str | None:
    """The innermost module that holds all of these parameters; None where only the root does and there are several."""
    owners = [name.partition("/")[0].rpartition(".")[0].split(".") for name in names]
    if not owners:
        return None
    prefix = list(itertools.takewhile(lambda part: part is not None, map(_shared, zip(*owners, strict=False))))
    if not prefix or prefix == [""]:
        return "" if len(names) == 1 else None
    return ".".join(str(part) for part in prefix)


def _shared(parts: tuple[str, ...]) -> str | None:
    return parts[0] if len(set(parts)) == 1 else None


def gradient_survives_in_float32(replayable: Replayable, names: Sequence[str]) -> bool:
    """Whether most of the starved parameters do get a gradient when nothing is rounded to half precision."""
    change = Precision(torch.float32)
    try:
        seen = replay(replayable, change=change, until="backward")
    except CANNOT_RUN:
        return False
    finally:
        change.undo(replayable)
    alive = sum(1 for name in names if (g := seen.gradients.get(name)) is not None and g.present and g.norm > 0)
    return 2 * alive > len(names)


def trace_step(replayable: Replayable) -> Trace:
    tracer = Tracer(replayable.model, owners=replayable.facts.owners)
    replay(replayable, tracer=tracer, until="backward")
    tracer.trace.finish()
    return tracer.trace


def underflow_origin(replayable: Replayable, trace: Trace, names: Sequence[str]) -> Origin:
    """The op whose output rounded to zero, and the line whose factor had made the gradient that small."""
    lost = [r for r in trace.records if r.backward and _lost_everything(trace, r)]
    record = lost[0] if lost else None
    forward = _forward_of(trace, record) if record is not None else None
    shrinker = _strongest_shrink(trace, record)
    named = forward or record
    told_by = shrinker or named
    line = told_by.stack.innermost if told_by is not None else None
    return Origin(
        phase="backward",
        op=named.op if named else None,
        module=common_module(names) or (named.module if named else None),
        source=line.source if line else None,
        code_line=line.text if line else None,
        stack=tuple(f.source for f in told_by.stack.frames) if told_by is not None else (),
        ordinal=record.ordinal if record else None,
    )


def _lost_everything(trace: Trace, record: OpRecord) -> bool:
    """Non-zero numbers went in, half-precision zeros came out."""
    out = [touch for touch in record.writes if touch.reading is not None]
    into = [touch for touch in record.reads if touch.reading is not None]
    if not out or not into or not any(touch.dtype in ("float16", "bfloat16") for touch in out):
        return False
    return all(trace.value(touch) == 0.0 for touch in out) and all(trace.value(touch) > 0.0 for touch in into)


def _forward_of(trace: Trace, record: OpRecord) -> OpRecord | None:
    return trace.records[record.forward_ordinal] if record.forward_ordinal is not None else None


def _strongest_shrink(trace: Trace, lost: OpRecord | None) -> OpRecord | None:
    """The forward op whose derivative made the gradient smallest on its way to where it was lost."""
    if lost is None:
        return None
    best: tuple[float, OpRecord] | None = None
    for record in [lost, *ancestors(trace, lost)]:
        into = max((trace.value(touch) for touch in _gradients_in(trace, record)), default=0.0)
        out = max((trace.value(touch) for touch in record.writes if touch.reading is not None), default=0.0)
        forward = _forward_of(trace, record)
        if record is not lost and forward is not None and 0 < out < into:
            drop = math.log(into / out)
            if best is None or drop > best[0]:
                best = (drop, forward)
    return best[1] if best is not None and best[0] > math.log(100.0) else None


def _gradients_in(trace: Trace, record: OpRecord) -> list[Touch]:
    """What an op of backward received from backward, as opposed to the tensors forward had saved for it."""
    found = []
    for touch in record.reads:
        before = trace.writers.get(touch.storage, [])[: touch.writes_before]
        maker = trace.records[before[-1][0]] if before else None
        elsewhere = maker is not None and maker.forward_ordinal != record.forward_ordinal
        if maker is not None and maker.stage == "backward" and elsewhere and touch.reading is not None:
            found.append(touch)
    return found


def cut_origin(trace: Trace, names: Sequence[str]) -> Origin:
    """Where the graph between starved parameters and the loss was cut."""
    module = common_module(names)
    for visit in trace.visits:
        inside = any(name == visit.name or name.startswith(visit.name + ".") for name in names) or visit.name == ""
        # A pass without gradients beside one with them (a target, a log) cuts nothing off.
        also = any(v.name == visit.name and v.grad_enabled and v.stage == "forward" for v in trace.visits)
        off = visit.stage == "forward" and not visit.grad_enabled and not also
        if off and visit.trainable and inside and not visit.recompute:
            frame = visit.stack.innermost
            return Origin(
                phase="backward",
                module=visit.name,
                source=frame.source if frame else None,
                code_line=frame.text if frame else None,
                stack=tuple(f.source for f in visit.stack.frames),
            )
    cut = _cut(trace, frozenset(names))
    frame = cut.stack.innermost if cut is not None else None
    return Origin(
        phase="backward",
        op=cut.op if isinstance(cut, OpRecord) else None,
        module=module,
        source=frame.source if frame else None,
        code_line=frame.text if frame else None,
        stack=tuple(f.source for f in cut.stack.frames) if cut is not None else (),
        ordinal=cut.ordinal if isinstance(cut, OpRecord) else None,
    )


def _cut(trace: Trace, names: frozenset[str]) -> OpRecord | Exit | None:
    """Follow what the starved parameters feed until an op that passes no gradient on, or until it leaves the graph."""
    reached = {key for key, (kind, name) in trace.storage_labels.items() if kind == "parameter" and name in names}
    indices: OpRecord | None = None
    aside: OpRecord | Exit | None = None
    exits = list(trace.exits)
    on_the_way = _on_the_way_to_the_loss(trace)
    for record in trace.records:
        while exits and exits[0].before <= record.ordinal:
            left = exits.pop(0)
            if left.storage in reached and left.call == "data":
                if _goes_on(trace, left.storage, left.before, on_the_way):
                    return left
                aside = aside or left
        if record.backward or record.stage != "forward" or not any(t.storage in reached for t in record.reads):
            continue
        if record.op == "detach" and record.call in _DETACHING:
            # Read for a log, a count or a target it cuts nothing: only where the loss is made of what comes out.
            if _goes_on(trace, record.reads[0].storage, record.ordinal + 1, on_the_way):
                return record
            aside = aside or record
            continue
        if record.op in FLAT:
            return record
        if not record.grad_enabled:
            return record
        floats = [t for t in record.writes if "float" in t.dtype]
        if record.op in CHOOSING | ORDERING - {"to_copy"} or (record.op in PICKING and _only_index_used(trace, record)):
            return record
        if record.writes and not floats:
            indices = indices or record
        reached |= {t.storage for t in floats}
    return indices or aside or next((left for left in trace.exits if left.storage in reached), None)


def _only_index_used(trace: Trace, record: OpRecord) -> bool:
    """Whether an op that gives values and indices was asked for its indices alone."""
    if not any("int" in t.dtype for t in record.writes):
        return False
    values = {t.storage for t in record.writes if "float" in t.dtype}
    later = (r for r in trace.records[record.ordinal + 1 :] if r.stage == "forward" and not r.view)
    return not any(t.storage in values for r in later for t in r.reads)


def _on_the_way_to_the_loss(trace: Trace) -> frozenset[int]:
    """The ops that the last value of forward is made of."""
    forward = [
        r for r in trace.records if r.stage == "forward" and not r.backward and any(t.shape == () for t in r.writes)
    ]
    if not forward:
        return frozenset()
    return frozenset({forward[-1].ordinal, *(r.ordinal for r in ancestors(trace, forward[-1], limit=100_000))})


def _goes_on(trace: Trace, storage: int, start: int, on_the_way: frozenset[int]) -> bool:
    """Whether the next op that reads this memory is one that the loss is made of."""
    readers = (r for r in trace.records[start:] if not r.view and any(t.storage == storage for t in r.reads))
    reader = next(readers, None)
    return reader is not None and reader.ordinal in on_the_way


def has_moments_without_spread(replayable: Replayable) -> float:
    """Share of Adam's entries whose first moment lives while the second is exactly zero: rounding did that."""
    counts = list(_without_spread(replayable))
    total = sum(number for *_, number in counts)
    return sum(lost for _, lost, _ in counts) / total if total else 0.0


def lost_moments(replayable: Replayable) -> list[str]:
    """The parameters of which more than one in a hundred second moments is zero beside a living first moment."""
    return [name for name, lost, number in _without_spread(replayable) if lost > 0.01 * number]


def _without_spread(replayable: Replayable) -> Iterator[tuple[str, int, int]]:
    names = parameter_names(replayable)
    for optimizer in replayable.optimizers:
        for parameter, state in states_of(optimizer):
            first, second = state.get("exp_avg"), state.get("exp_avg_sq")
            if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and first.shape == second.shape:
                lost = int(((first != 0) & (second == 0)).sum())
                yield names.get(id(parameter), "?"), lost, first.numel()
