"""Where the first bad value was computed: a slice back from a bad loss, gradient, weight or buffer.

The first non-finite value in time is often innocent (a mask, an unselected branch). So the search starts at a value
that matters and walks to the ops that really fed it. A NaN is followed to its birth, the op with no NaN going in and
a NaN coming out. If infinities went in there, each is followed too: one that was written on purpose (a constant, a
mask fill) is innocent and the birth stands; one that overflowed from finite numbers is the real origin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..trace.trace_log import OpRecord, Touch, Trace, is_bad

# Ops that write a constant somewhere. An infinity they bring was asked for.
WRITES_CONSTANTS = frozenset(
    {
        "constant_pad_nd",
        "copy",
        "diagonal_scatter",
        "fill",
        "fill_scalar",
        "full",
        "full_like",
        "index_copy",
        "index_fill",
        "index_put",
        "lift_fresh",
        "lift_fresh_copy",
        "masked_fill",
        "masked_scatter",
        "new_full",
        "ones",
        "ones_like",
        "scalar_tensor",
        "scatter",
        "select_scatter",
        "slice_scatter",
        "tril",
        "triu",
        "where",
        "zeros",
        "zeros_like",
    }
)
UNINITIALISED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize"})
SOFTMAX = frozenset({"softmax", "log_softmax", "scaled_dot_product_attention", "safe_softmax", "logsumexp"})
# Arithmetic of features: an infinity of the batch that ends in one of these was no mask.
_FEATURE_ARITHMETIC = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "native_layer_norm",
        "native_batch_norm",
        "native_group_norm",
        "fused_rms_norm",
        "rms_norm",
        "mean",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "cumsum",
        "fft_r2c",
        "fft_c2c",
        "silu",
        "gelu",
        "mish",
        "hardswish",
        "sin",
        "cos",
    }
)
_RECKONING = frozenset({"sub", "rsub", "div", "mul", "addcmul", "addcdiv", "lerp"})
_PRODUCTS = frozenset({"to_copy", "mm", "addmm", "bmm", "baddbmm", "convolution", "mul", "add", "sum", "pow", "mean"})
_RANDOM = frozenset({"rand", "randn", "rand_like", "randn_like", "uniform", "normal", "bernoulli", "native_dropout"})
_MASK_MAKERS = frozenset({"log", "log2", "log10", "log1p", "log_softmax", "log_sigmoid_forward"})


@dataclass(frozen=True, slots=True)
class BadOrigin:
    """Where a bad value comes from: an op of this step, or a leaf that was bad before it.

    Of a leaf without a name (a number or tensor of the program's own) `record` is the op that it entered by.
    """

    record: OpRecord | None = None
    leaf: tuple[str, str] | None = None
    is_nan: bool = True
    intended: bool = False
    bits: bool = False
    """Written through an integer view: no one computed this number."""
    into_features: bool = False
    """A constant infinity, written right where it meets weights."""
    unseen: bool = False
    """Written by a kernel that torch does not see (Triton, a CUDA extension, numpy), after this op."""

    @property
    def order(self) -> int:
        return -1 if self.record is None else self.record.ordinal


def producer(trace: Trace, touch: Touch) -> OpRecord | None:
    """The op whose bad output this touch saw, or None where the storage came into the step with it."""
    log = trace.writers.get(touch.storage, [])[: touch.writes_before]
    bad = [(ordinal, trace.values[r]) for ordinal, r in reversed(log) if r is not None and is_bad(trace.values[r])]
    # One storage may hold several parts: a mask of -inf written into one of them did not make the NaN in another.
    is_nan = math.isnan(trace.value(touch))
    same = (ordinal for ordinal, value in bad if math.isnan(value) == is_nan)
    maker = next(same, bad[0][0] if bad else None)
    if maker is not None:
        return trace.records[maker]
    # No one wrote a bad number, so someone wrote bits: through an integer view of the same storage.
    for ordinal, reading in reversed(log):
        record = trace.records[ordinal]
        if reading is None and any(t.storage == touch.storage and "int" in t.dtype for t in record.writes):
            return record
    # This step made the storage and what torch wrote there was finite: a kernel that it does not see wrote the rest.
    if log and trace.label(touch)[0] == "constant":
        return trace.records[log[-1][0]]
    return None


def find_bad_origin(trace: Trace, sinks: Iterable[Touch], *, forward_is_clean: bool = False) -> BadOrigin | None:
    """The earliest unintended birth that feeds any of the sinks.

    `forward_is_clean` says that the loss was finite: infinities a backward op meets among its saved tensors did no
    harm on the way to the loss, so a NaN made from them is first computed in backward.
    """
    bad_origins: list[BadOrigin] = []
    for sink in sinks:
        bad_origins += _OriginSearch(trace, forward_is_clean).from_touch(sink)
    culpable = [bad_origin for bad_origin in bad_origins if not bad_origin.intended] or bad_origins
    return min(culpable, key=lambda bad_origin: bad_origin.order, default=None)


class _OriginSearch:
    """A depth-first walk with a memory of the values already followed."""

    def __init__(self, trace: Trace, forward_is_clean: bool) -> None:
        self.trace = trace
        self.forward_is_clean = forward_is_clean
        self._seen: set[tuple[int, int]] = set()

    def from_touch(self, start: Touch) -> list[BadOrigin]:
        found: list[BadOrigin] = []
        pending: list[tuple[Touch, OpRecord | None]] = [(start, None)]
        while pending:
            touch, reader = pending.pop()
            key = (touch.storage, touch.writes_before)
            if key in self._seen:
                continue
            self._seen.add(key)
            record = producer(self.trace, touch)
            if record is None:
                found.append(self._leaf(touch, reader))
                continue
            if not any(is_bad(self.trace.value(t)) for t in record.writes):
                bits = any("int" in t.dtype for t in record.writes)
                is_nan = math.isnan(self.trace.value(touch))
                found.append(BadOrigin(record=record, is_nan=is_nan, bits=bits, unseen=not bits))
                continue
            follow, bad_origin = self._at(record)
            pending += [(each, record) for each in follow]
            found += bad_origin
        return found

    def _leaf(self, touch: Touch, reader: OpRecord | None) -> BadOrigin:
        kind, name = self.trace.label(touch)
        value = self.trace.value(touch)
        # An infinity no one computed (a mask in the batch, a constant bias, a masked buffer) was put there to be used.
        # Written into a tensor by forward it is data, which the call of the model shows as such.
        written = reader is not None and reader.stage == "forward" and reader.op in WRITES_CONSTANTS
        return BadOrigin(
            record=reader if kind == "constant" and not written else None,
            leaf=(kind, name),
            is_nan=math.isnan(value),
            intended=not math.isnan(value) and kind != "parameter",
        )

    def _at(self, record: OpRecord) -> tuple[list[Touch], list[BadOrigin]]:
        """Which inputs to follow from here, or the birth if it is here."""
        value = self.trace.value
        made_nan = any(math.isnan(value(touch)) for touch in record.writes)
        nans = [touch for touch in record.reads if math.isnan(value(touch))]
        infs = [touch for touch in record.reads if math.isinf(value(touch))]
        if record.op in UNINITIALISED:
            return [], [BadOrigin(record=record, is_nan=made_nan)]
        if record.backward and self.forward_is_clean:
            # What forward saved did no harm on its way to a finite loss; only what backward made is followed.
            nans = [touch for touch in nans if self._made_in_backward(touch)]
            infs = [touch for touch in infs if made_nan or self._made_in_backward(touch)]
        if made_nan and nans:
            return nans, []
        if made_nan and infs:
            return [], self._nan_from_infinities(record, infs)
        if made_nan:
            return [], [BadOrigin(record=record)]
        if infs:
            writers = [self._written_into_features(touch, record) for touch in infs]
            written = [
                BadOrigin(record=writer, is_nan=False, into_features=True) for writer in writers if writer is not None
            ]
            return ([], written) if written else (infs, [])
        intended = record.op in WRITES_CONSTANTS
        return [], [BadOrigin(record=record, is_nan=False, intended=intended)]

    def _made_in_backward(self, touch: Touch) -> bool:
        maker = producer(self.trace, touch)
        if maker is None:
            return self.trace.label(touch)[0] == "grad"
        return maker.backward or maker.stage != "forward"

    def _nan_from_infinities(self, record: OpRecord, infs: list[Touch]) -> list[BadOrigin]:
        sources: list[BadOrigin] = []
        for touch in infs:
            if (writer := self._written_into_features(touch, record)) is not None:
                sources.append(BadOrigin(record=writer, is_nan=False, into_features=True))
                continue
            bad_origins = _OriginSearch(self.trace, self.forward_is_clean).from_touch(touch)
            sources += [bad_origin for bad_origin in bad_origins if not self._innocent_here(bad_origin, record, touch)]
        return sources or [BadOrigin(record=record)]

    def _written_into_features(self, touch: Touch, consumer: OpRecord) -> OpRecord | None:
        """The op that wrote a constant infinity right where it meets weights: no one multiplies a mask with them."""
        writer = producer(self.trace, touch)
        if writer is None or writer.op not in WRITES_CONSTANTS or writer.backward or consumer.backward:
            return None
        if consumer.op not in _PRODUCTS or not any(self.trace.label(t)[0] == "parameter" for t in consumer.reads):
            return None
        given = [read for read in writer.reads if math.isinf(self.trace.value(read))]
        makers = [(producer(self.trace, read), self.trace.label(read)[0]) for read in given]
        constant = (kind == "constant" if maker is None else maker.op in WRITES_CONSTANTS for maker, kind in makers)
        return writer if all(constant) else None

    def _innocent_here(self, bad_origin: BadOrigin, consumer: OpRecord, touch: Touch) -> bool:
        if bad_origin.intended:
            # A softmax takes minus infinity for a mask; plus infinity, unless it is turned over on its way, is none.
            if consumer.op in SOFTMAX and bad_origin.leaf in self.trace.positive:
                return turned_over(self.trace, touch, None)
            # No one masks features: in a batch, or by plus infinities in a buffer, an infinity among them is an error.
            from_batch = bad_origin.leaf is not None and bad_origin.leaf[0] == "batch"
            data = from_batch or bad_origin.leaf in self.trace.overflowed
            # Reckoned with, a buffer of nothing but infinities was no mask: it waits to be written for the first time.
            unwritten = bad_origin.leaf in self.trace.unwritten | self.trace.overflowed and consumer.op in _RECKONING
            features = consumer.op in _FEATURE_ARITHMETIC or passed_through(self.trace, touch, _FEATURE_ARITHMETIC)
            return not unwritten and not (data and features)
        if bad_origin.record is None or bad_origin.bits:
            return False
        if consumer.backward and not bad_origin.record.backward and self.forward_is_clean:
            # Unless it left the float16 range: a saturating function may have hidden that from the loss.
            # Or it was too large for the type it was cast to.
            half = any(touch.dtype == "float16" for touch in bad_origin.record.writes)
            elsewhere = bad_origin.record.ordinal != consumer.forward_ordinal
            return not (
                elsewhere and ((half and bad_origin.record.op in _PRODUCTS) or bad_origin.record.op == "to_copy")
            )
        # log(0) used as an additive mask: the softmax that found nothing left is where it went wrong.
        # Turned over on its way it is +inf, and no mask at all.
        mask = consumer.op in SOFTMAX and bad_origin.record.op in _MASK_MAKERS
        return mask and not turned_over(self.trace, touch, bad_origin.record)


def discarded_nan(trace: Trace, record: OpRecord) -> OpRecord | None:
    """The op of forward that made a NaN which forward then discarded, and which an op of backward met among what was
    saved for it. None where it met none, or where the NaN came with the batch or the state."""
    saved = [t for t in record.reads if math.isnan(trace.value(t))]
    bad_origins = [bad_origin for touch in saved for bad_origin in _OriginSearch(trace, False).from_touch(touch)]
    makers = [
        b.record for b in bad_origins if b.record is not None and b.is_nan and not b.record.backward and not b.unseen
    ]
    return min(makers, key=lambda maker: maker.ordinal, default=None)


def hidden_overflow(trace: Trace, record: OpRecord) -> OpRecord | None:
    """The op of forward whose half-precision result left its range, was masked away on its way to a finite loss, and is
    what this op of backward met among its saved tensors. None where anything else is behind what it met."""
    pending = [touch for touch in record.reads if is_bad(trace.value(touch))]
    seen: set[int] = set()
    makers: list[OpRecord] = []
    while pending:
        maker = producer(trace, pending.pop())
        if maker is None or maker.backward:
            return None  # it came with the batch or the state, or backward made it
        if maker.ordinal in seen or maker.op in WRITES_CONSTANTS:
            continue
        seen.add(maker.ordinal)
        bad = [touch for touch in maker.reads if is_bad(trace.value(touch))]
        pending += bad
        if not bad:
            makers.append(maker)
    halves = [maker for maker in makers if all(t.dtype == "float16" for t in maker.writes if is_bad(trace.value(t)))]
    return min(halves, key=lambda maker: maker.ordinal) if makers and len(halves) == len(makers) else None


def first_taker(trace: Trace, sink: Touch, maker: OpRecord) -> OpRecord | None:
    """The first op on the way from a mask to the loss that takes the masked entry for a value: behind the softmax that
    the mask was meant for, or the first of all."""
    path: list[OpRecord] = []
    touch: Touch | None = sink
    while touch is not None:
        record = producer(trace, touch)
        if record is None or record is maker or record in path:
            break
        path.append(record)
        touch = next((t for t in record.reads if is_bad(trace.value(t))), None)
    behind = list(itertools.takewhile(lambda record: record.op not in SOFTMAX, path))
    return behind[-1] if behind else None


def kernel_of(record: OpRecord) -> str:
    """What to call a kernel that torch does not see: the class whose code was at work, an autograd function say."""
    owners = [frame.owner for frame in record.stack.frames if frame.owner and frame.owner != "locals"]
    return owners[0] if owners else "unseen_kernel"


def turned_over(trace: Trace, touch: Touch, maker: OpRecord | None) -> bool:
    """Whether an infinity changed its sign between the op that made it, or the leaf that it came with (None), and this
    touch of it."""
    pending, seen = [(touch, False)], set[int]()
    while pending:
        current, flipped = pending.pop()
        record = producer(trace, current)
        if record is maker:
            return flipped
        if record is None or record.ordinal in seen:
            continue
        seen.add(record.ordinal)
        for place, read in enumerate(record.reads):
            if math.isinf(trace.value(read)):
                pending.append((read, flipped != _turns(record, place)))
    return False


def passed_through(trace: Trace, touch: Touch, ops: frozenset[str]) -> bool:
    """Whether an infinity came here by way of one of these ops."""
    pending, seen = [touch], set[int]()
    while pending:
        record = producer(trace, pending.pop())
        if record is None or record.ordinal in seen:
            continue
        if record.op in ops:
            return True
        seen.add(record.ordinal)
        pending += [read for read in record.reads if math.isinf(trace.value(read))]
    return False


def _turns(record: OpRecord, place: int) -> bool:
    """Whether an op gives its input at this place back with the other sign."""
    if record.op in ("neg", "rsub"):
        return True
    if record.op == "sub":
        return place == 1
    return record.op in ("mul", "div") and any(scalar < 0 for scalar in record.scalars)


def only_of_parameters(trace: Trace, record: OpRecord) -> frozenset[str]:
    """The parameters that an op was computed from, where nothing else went into it: no batch, no buffer, no chance.

    Of a division only the divisor counts. Empty where the batch has a part in it.
    """
    reads = record.reads[1:] if record.op == "div" and len(record.reads) > 1 else record.reads
    names: set[str] = set()
    pending, seen = list(reads), set[int]()
    while pending:
        touch = pending.pop()
        kind, name = trace.label(touch)
        log = trace.writers.get(touch.storage, [])[: touch.writes_before]
        if kind == "parameter":
            names.add(name)
        elif kind != "constant":
            return frozenset()
        elif log and log[-1][0] not in seen:
            maker = trace.records[log[-1][0]]
            if maker.op in _RANDOM:
                return frozenset()
            seen.add(maker.ordinal)
            pending += maker.reads
    return frozenset(names)


def ancestors(
    trace: Trace, record: OpRecord, *, limit: int = 200, stop: frozenset[int] = frozenset()
) -> list[OpRecord]:
    """The ops that fed a record, nearest first, through every input, good or bad; not through those in `stop`."""
    found: list[OpRecord] = []
    pending, seen = [record], {record.ordinal, *stop}
    while pending and len(found) < limit:
        current = pending.pop(0)
        for touch in current.reads:
            log = trace.writers.get(touch.storage, [])
            before = [ordinal for ordinal, _ in log[: touch.writes_before]]
            if before and before[-1] not in seen:
                seen.add(before[-1])
                found.append(trace.records[before[-1]])
                pending.append(trace.records[before[-1]])
    return found
