"""The examination: one traced replay, the slice to the origin, and a second replay that catches the op in the act."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from ...detect.tensors.foreign_objects import isinstance
from ...records import Origin, TensorDigest
from ..causes.evidence import FP16_TINY, OpFacts
from ..interventions.backend.unwritten_memory import FillMemory
from ..isolation.resource_limits import fits_beside_a_step
from ..replay.batch_tree import walk_batch
from ..replay.replay_observation import ReplayObservation, absmax
from ..replay.replay_step import CANNOT_RUN, replay
from ..replay.replayable import Replayable
from ..trace.trace_log import OpRecord, Touch, Trace, is_bad
from ..trace.tracer import Tracer
from ..trace.written_line import WrittenLine
from .op_capture import CapturedOp
from .op_facts import op_facts
from .origin import (
    UNINITIALISED,
    BadOrigin,
    ancestors,
    discarded_nan,
    find_bad_origin,
    first_taker,
    hidden_overflow,
    kernel_of,
    producer,
)

MAX_WATCHED = 24
_MASKING = frozenset(
    {"where", "masked_fill", "nan_to_num", "masked_select", "masked_scatter", "index_put", "index", "clamp"}
)

# Functions that make a finite number of an infinity, and hide it from the loss.
_SATURATING = frozenset({"tanh", "sigmoid", "erf", "atan", "reciprocal", "div", "exp", "softmax", "hardtanh"})
_BY_SIZE = frozenset({"clamp", "clamp_min", "clamp_max", "minimum", "maximum", "min", "max", "amin", "amax"})
_LARGEST = frozenset({"amax", "max", "logsumexp", "cummax"})


@dataclass(slots=True)
class Examination:
    """One failing step under the lens. `forward` is the forward op behind a backward-computed value."""

    seen: ReplayObservation
    trace: Trace
    bad_origin: BadOrigin | None = None
    record: OpRecord | None = None
    forward: OpRecord | None = None
    captured_op: CapturedOp = field(default_factory=CapturedOp)
    forward_captured_op: CapturedOp = field(default_factory=CapturedOp)
    incoming: torch.Tensor | None = None
    zeroed_by_mask: bool = False
    saturated: bool = False
    capped: bool = False
    """Of a value that forward discarded: a bound or a minimum of the value itself did that, and no condition."""
    mask_reached_loss: bool = False
    doubt: str = ""
    """What was not read on the way from the bad value to its birth, so that the birth may lie further back."""
    nearby: dict[int, CapturedOp] = field(default_factory=dict)

    @property
    def named(self) -> OpRecord | None:
        """The record whose op, module and line are the answer."""
        if (
            self.record is not None
            and self.record.backward
            and not _has_own_line(self.record)
            and self.forward is not None
        ):
            return self.forward
        return self.record


def _has_own_line(record: OpRecord) -> bool:
    """A backward op that runs inside the user's own code: a custom autograd function or a hook."""
    return record.backward and any(not frame.library for frame in record.stack.frames)


def examine(replayable: Replayable, *, thorough: bool = False) -> Examination:
    """Replay the step under the tracer and find where its first bad value was computed.

    `thorough` traces backward and the optimizer too when the loss is already bad.
    """
    tracer = Tracer(replayable.model, owners=replayable.facts.owners)
    seen = replay(replayable, tracer=tracer, thorough=thorough)
    tracer.trace.finish()
    exam = Examination(seen, tracer.trace)
    sinks = choose_sinks(seen)
    if not sinks:
        return exam
    touches = [seen.sinks[key] for key in sinks if key in seen.sinks]
    exam.bad_origin = find_bad_origin(tracer.trace, touches, forward_is_clean=seen.loss_finite)
    exam.doubt = not_followed(tracer.trace, exam.bad_origin)
    entry = bad_entry(replayable, seen) if exam.doubt else None
    if entry is not None:
        exam.bad_origin = BadOrigin(leaf=("batch", entry))
    if exam.bad_origin is None or exam.bad_origin.record is None:
        return exam
    exam.record = exam.bad_origin.record
    if exam.record.op in UNINITIALISED and not exam.bad_origin.unseen and _fails_with_memory_filled(replayable, seen):
        exam.bad_origin = replace(exam.bad_origin, unseen=True)
    if exam.bad_origin.intended and not seen.loss_finite and not exam.record.backward:
        # A mask did what it is there for; wrong is that the loss is made of what it had put out of play.
        exam.record = first_taker(tracer.trace, touches[0], exam.record) or exam.record
        exam.mask_reached_loss = exam.record is not exam.bad_origin.record
    unseen = exam.bad_origin.unseen
    if unseen:
        exam.record.op = kernel_of(exam.record)
    if seen.loss_finite and exam.record.backward:
        overflow = hidden_overflow(tracer.trace, exam.record)
        if overflow is not None:
            exam.bad_origin, exam.record = BadOrigin(record=overflow, is_nan=False), overflow
    if exam.record.forward_ordinal is not None:
        forward = tracer.trace.records[exam.record.forward_ordinal]
        exam.forward = (discarded_nan(tracer.trace, exam.record) if seen.loss_finite else None) or forward
    capture_op(replayable, exam)
    if unseen and exam.record.stage == "forward":
        _find_written_line(replayable, exam.record, exam.captured_op)
    if exam.mask_reached_loss and exam.bad_origin.leaf is not None and number_given(exam) is not None:
        # No mask: a number that the program wrote there.
        exam.record, exam.mask_reached_loss = exam.bad_origin.record, False
        capture_op(replayable, exam)
    return exam


def _fails_with_memory_filled(replayable: Replayable, seen: ReplayObservation) -> bool:
    """Whether the step fails although all memory that it allocates holds zeros at first: then what lay there before, a
    NaN of an earlier run perhaps, is not the cause, and a kernel that torch does not see has written over it."""
    try:
        again = replay(replayable, change=FillMemory(), until="backward" if seen.loss_finite else "forward")
    except CANNOT_RUN:
        return False
    return not again.loss_finite or bool(again.bad_gradients)


def number_given(exam: Examination) -> float | None:
    """A NaN or an infinity that the program gave the origin as a number, or in a tensor without a name. Minus infinity
    is for masks, except in features."""
    record, born = exam.record, exam.bad_origin
    if record is None or born is None:
        return None
    wrong = (math.inf, -math.inf) if born.into_features else (math.inf,)
    plain = next((value for value in record.scalars if math.isnan(value) or value in wrong), None)
    if plain is not None or (born.leaf is not None and born.leaf[0] != "constant"):
        return plain
    if born.leaf is not None and born.is_nan:
        return math.nan
    given = [
        tensor
        for touch, tensor in zip(record.reads, exam.captured_op.tensors, strict=False)
        if born.leaf is not None or (exam.trace.label(touch)[0] == "constant" and producer(exam.trace, touch) is None)
    ]
    signs = [(bool(torch.isposinf(t).any()), bool(torch.isneginf(t).any())) for t in given if t.is_floating_point()]
    up, down = any(up for up, _ in signs), any(down for _, down in signs)
    if born.into_features and down and not up:
        return -math.inf
    return math.inf if up and not down else None


def not_followed(trace: Trace, bad_origin: BadOrigin | None) -> str:
    """What kept the search from going further back than this birth: the reason for a tensor that was not read; ""."""
    if bad_origin is None:
        return ""
    if bad_origin.record is not None and bad_origin.leaf is None:
        came_in = any(is_bad(trace.value(touch)) for touch in bad_origin.record.reads)
        return "" if came_in or not bad_origin.record.unread else bad_origin.record.unread[0]
    unnamed = bad_origin.leaf is not None and bad_origin.leaf[0] == "constant"
    return next((why for why in trace.unread if not why.startswith("tracer failed")), "") if unnamed else ""


def bad_entry(replayable: Replayable, seen: ReplayObservation) -> str | None:
    """The first entry of the failing batch that holds a NaN."""
    batch = replayable.batches[seen.guilty_batch or 0] if replayable.batches else None
    named = ((key, value) for key, value in walk_batch(batch) if isinstance(value, torch.Tensor))
    return next((key for key, value in named if math.isnan(absmax(value))), None)


def choose_sinks(seen: ReplayObservation) -> list[tuple[str, str]]:
    """The bad values that matter most: the loss before gradients, gradients before weights, weights before states."""
    for kind in ("loss", "grad", "entering", "parameter", "optimizer", "buffer"):
        chosen = [key for key in seen.sinks if key[0] == kind]
        if chosen:
            return chosen
    return []


def capture_op(replayable: Replayable, exam: Examination) -> None:
    """Replay once more and copy the tensors of the origin, its forward op and the ops around them.

    A step that raises on its way has been watched as far as it went.
    """
    assert exam.record is not None
    wanted: dict[int, CapturedOp] = {exam.record.ordinal: exam.captured_op}
    if exam.forward is not None:
        wanted[exam.forward.ordinal] = exam.forward_captured_op
    neighbours = [r for r in exam.trace.records if r.backward and r.forward_ordinal == exam.record.forward_ordinal]
    near = ancestors(exam.trace, exam.named or exam.record, limit=12)
    for record in (neighbours[:8] if exam.record.backward else []) + near:
        if record.ordinal not in wanted and len(wanted) < MAX_WATCHED:
            wanted[record.ordinal] = exam.nearby.setdefault(record.ordinal, CapturedOp(light=True))
    needed = sum(captured.bytes_for(exam.trace.records[ordinal]) for ordinal, captured in wanted.items())
    on_host = not fits_beside_a_step(needed, replayable.model.parameters())
    for captured in wanted.values():
        captured.on_host = on_host
    tracer = Tracer(
        replayable.model,
        owners=replayable.facts.owners,
        watch={ordinal: s.watcher() for ordinal, s in wanted.items()},
        deaf=True,
    )
    until = {"commit": "commit", "backward": "backward"}.get(exam.record.stage, "forward")
    if until == "forward" and exam.seen.guilty_batch:
        until = "backward"  # ops are counted, and those of the micro-batches before it ran backward too
    with suppress(*CANNOT_RUN):
        replay(replayable, tracer=tracer, until=until)
    if exam.record.backward:
        _find_incoming(exam, [exam.record, *neighbours])


def _find_written_line(replayable: Replayable, record: OpRecord, captured_op: CapturedOp) -> None:
    """The line that launched a kernel which torch does not see, in place of the one that made the memory it wrote."""
    found = WrittenLine(replayable.facts.owners)
    tracer = Tracer(replayable.model, owners=replayable.facts.owners, watch={record.ordinal: found.watcher}, deaf=True)
    with suppress(*CANNOT_RUN), found.watching():
        replay(replayable, tracer=tracer, until="forward")
    if found.stack is not None:
        record.stack, captured_op.bad_leading = found.stack, found.bad_leading


def _find_incoming(exam: Examination, node: list[OpRecord]) -> None:
    """The gradient that came into the origin's autograd node, and whether a mask had zeroed it."""
    trace = exam.trace
    for record in sorted(node, key=lambda r: r.ordinal):
        captured_op = exam.captured_op if record is exam.record else exam.nearby.get(record.ordinal)
        for index, touch in enumerate(record.reads):
            before = trace.writers.get(touch.storage, [])[: touch.writes_before]
            source = trace.records[before[-1][0]] if before else None
            if source is None or not source.backward or source.forward_ordinal == record.forward_ordinal:
                continue
            tensors = captured_op.tensors if captured_op is not None else []
            if index < len(tensors):
                exam.incoming = tensors[index]
            chain = [source, *ancestors(trace, source, limit=10)]
            forwards = [
                trace.records[r.forward_ordinal].op for r in chain if r.backward and r.forward_ordinal is not None
            ]
            exam.zeroed_by_mask = any(op in _MASKING for op in forwards[:6])
            chosen = set(forwards[:6]) & (_MASKING | _BY_SIZE)
            exam.capped = bool(chosen) and chosen <= _BY_SIZE
            exam.saturated = not exam.zeroed_by_mask and any(op in _SATURATING for op in forwards[:3])
            return


def locate(exam: Examination) -> Origin | None:
    """The birth as an origin: phase, op, module, line."""
    if exam.bad_origin is None:
        return None
    if exam.bad_origin.record is None:
        kind, name = exam.bad_origin.leaf or ("constant", "")
        if kind == "batch":
            return Origin(phase="data", tensor=name)
        return Origin(phase="state", module=owner_of(kind, name), tensor=name.partition("/")[0] or None)
    record, named = exam.record or exam.bad_origin.record, exam.named
    assert named is not None
    phase = phase_of(record)
    frame = named.stack.innermost
    module = exam.forward.module if record.backward and exam.forward is not None else named.module
    if module is None and named.stack.recompute:
        module = _module_at_first(exam.trace, named)
    tensor = None
    if phase == "optimizer":
        tensor = _parameter_behind(exam.trace, record)
        module = owner_of("parameter", tensor) if tensor else None
    return Origin(
        phase=phase,
        op=named.op,
        module=module,
        source=frame.source if frame else None,
        code_line=frame.text if frame else None,
        stack=tuple(f.source for f in named.stack.frames),
        ordinal=record.ordinal,
        tensor=tensor,
        inputs=exam.captured_op.inputs,
        outputs=exam.captured_op.outputs,
        lead_up=leading(exam.trace, record),
    )


def _module_at_first(trace: Trace, again: OpRecord) -> str | None:
    """The module that ran a line the first time: a checkpoint that recomputes it may call it without its module."""
    same = (r for r in trace.records if r.op == again.op and r.site == again.site and r.module is not None)
    return next((r.module for r in same if not r.stack.recompute), None)


def leading(trace: Trace, record: OpRecord, *, most: int = 8) -> tuple[TensorDigest, ...]:
    """What the ops that led to this one made, earliest first, following the largest finite value back each time."""
    found: list[TensorDigest] = []
    seen: set[int] = set()
    while len(found) < most:
        best: tuple[float, OpRecord, Touch] | None = None
        for touch in record.reads:
            before = trace.writers.get(touch.storage, [])[: touch.writes_before]
            value = trace.value(touch)
            if before and touch.reading is not None and math.isfinite(value) and (best is None or value > best[0]):
                best = (value, trace.records[before[-1][0]], touch)
        if best is None or best[1].ordinal in seen:
            break
        value, record, touch = best
        seen.add(record.ordinal)
        if not record.view:
            frame = record.stack.innermost
            place = [record.op, record.module or "", frame.source if frame is not None else ""]
            name = "  ".join(part for part in place if part)
            found.append(TensorDigest(name=name, shape=touch.shape, dtype=touch.dtype, absmax=value))
    return tuple(reversed(found))


def phase_of(record: OpRecord) -> str:
    if record.stage == "commit":
        return "optimizer"
    if record.backward or (record.stage == "backward" and not record.stack.recompute):
        return "backward"
    return "loss" if record.module is None else "forward"


def owner_of(kind: str, name: str) -> str | None:
    """The module a parameter, buffer, gradient or moment belongs to."""
    if kind not in ("parameter", "buffer", "optimizer", "grad") or not name:
        return None
    return name.partition("/")[0].rpartition(".")[0]


def _parameter_behind(trace: Trace, record: OpRecord) -> str | None:
    """Which parameter an optimizer op was about: by the tensors it touched, or those of the ops around it.

    None where what it computed with was made of the gradients of several modules: a norm over all, say.
    """
    if _num_gradients_in(trace, record) > 1:
        return None
    later = [r for r in trace.records[record.ordinal : record.ordinal + 8] if r.stage == "commit"]
    around = [record, *later]
    spoiled = [touch for r in around for touch in r.writes if is_bad(trace.value(touch))]
    touched = [touch for r in around for touch in (*r.writes, *r.reads)]
    labels = (trace.label(touch) for touch in (*(spoiled if len(record.writes) > 1 else ()), *touched))
    return next((n.partition("/")[0] for kind, n in labels if kind in ("parameter", "optimizer", "grad")), None)


def _num_gradients_in(trace: Trace, record: OpRecord) -> int:
    """Of how many gradients the inputs that an optimizer op had computed before were made; 0 for an op over lists."""
    if len(record.writes) > 1:
        return 0
    found: set[int] = set()
    for touch in record.reads:
        before = trace.writers.get(touch.storage, [])[: touch.writes_before]
        maker = trace.records[before[-1][0]] if before else None
        if maker is None or maker.stage != "commit":
            continue
        for each in (maker, *ancestors(trace, maker, limit=200)):
            if each.stage == "commit":
                found |= {t.storage for t in each.reads if _is_gradient(trace, t)}
    return len(found)


def _is_gradient(trace: Trace, touch: Touch) -> bool:
    before = trace.writers.get(touch.storage, [])[: touch.writes_before]
    return trace.label(touch)[0] == "grad" or (bool(before) and trace.records[before[-1][0]].stage == "backward")


def facts_of(exam: Examination) -> OpFacts:
    """What the origin's own tensors show."""
    forward = exam.forward_captured_op if exam.forward is not None else None
    facts = op_facts(exam.captured_op, forward=forward, incoming=exam.incoming)
    masked_row = facts.masked_row or _shifted_by_nothing(exam)
    return replace(facts, zeroed_by_mask=exam.zeroed_by_mask, masked_row=masked_row)


def _shifted_by_nothing(exam: Examination) -> bool:
    """A softmax written by hand: -inf minus the largest (or the log-sum) of a row in which all is -inf."""
    record = exam.record
    if record is None or record.op != "sub" or record.backward or len(record.reads) < 2:
        return False
    taken = exam.captured_op.tensors[1] if len(exam.captured_op.tensors) > 1 else None
    makers = [producer(exam.trace, record.reads[1])]
    while makers[-1] is not None and makers[-1].op in ("detach", "unsqueeze", "where", "clone", "to_copy"):
        makers.append(next((p for t in makers[-1].reads if (p := producer(exam.trace, t)) is not None), None))
    last = makers[-1]
    return last is not None and last.op in _LARGEST and taken is not None and bool(torch.isneginf(taken).any())


def cancelled(exam: Examination) -> bool:
    """Whether a subtraction close before the origin lost nearly all its digits."""
    for captured_op in exam.nearby.values():
        record = captured_op.record
        if record is None or record.op not in ("sub", "rsub", "add", "addcmul", "baddbmm", "addmm"):
            continue
        tensors = [t for t in captured_op.tensors if t.is_floating_point()]
        tensors += [tensors[0].new_tensor(x) for x in record.scalars if tensors][: 2 - len(tensors)]
        if len(tensors) < 2 or not captured_op.output_tensors:
            continue
        try:
            size = torch.maximum(tensors[0].abs(), tensors[1].abs())
            left = captured_op.output_tensors[0]
            lost = (left.abs() <= 1e-4 * size) & torch.isfinite(size)
            big = size > 1e-6
        except RuntimeError:
            continue
        if bool((lost & big & (left < 0)).any()):
            return True
    return False


def could_be_scrubbed(exam: Examination) -> bool:
    """A bad loss, finite gradients, and weights that moved."""
    seen = exam.seen
    return seen.stepped and not seen.bad_gradients and any(size > 0 for size in seen.updates.values())


def scrubbed(exam: Examination) -> bool:
    """Whether the user's own code turned bad gradients into harmless ones, and the optimizer moved the weights."""
    if not could_be_scrubbed(exam):
        return False
    for record in exam.trace.records:
        by_user = record.stage in ("backward", "commit") and any(not frame.library for frame in record.stack.frames)
        if not by_user or record.stack.recompute or record.op in ("isnan", "isfinite", "ne", "eq"):
            continue
        bad_in = any(is_bad(exam.trace.value(touch)) for touch in record.reads)
        floats = [touch for touch in record.writes if "float" in touch.dtype]
        if bad_in and floats and not any(is_bad(exam.trace.value(touch)) for touch in floats):
            return True
    return False


def tampered_with(exam: Examination) -> tuple[str, ...]:
    """Gradients that backward had left finite and that something of the user's, not an optimizer's, made bad."""
    names = tuple(name for kind, name in choose_sinks(exam.seen) if kind == "entering")
    record = exam.bad_origin.record if names and exam.bad_origin is not None else None
    if exam.bad_origin is None or record is None:
        return ()
    by_user = record.stage == "commit" and any(not frame.library for frame in record.stack.frames)
    return names if exam.bad_origin.bits or by_user else ()


def tiny_scalar_in_half(exam: Examination) -> bool:
    """Whether a constant that float16 cannot hold (an eps) was used close before the origin, in float16."""
    return any(
        s.record is not None
        and any(0 < abs(x) < FP16_TINY / 2 for x in s.record.scalars)
        and any(t.dtype is torch.float16 for t in s.output_tensors)
        for s in exam.nearby.values()
    )
