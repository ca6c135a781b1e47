"""An error whose message never mentions the NaN that caused it: look for it where the error was raised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ...diagnosis.batches import walk_batch
from ...diagnosis.exam import phase_of
from ...diagnosis.origin import find_birth
from ...diagnosis.trace import Tracer
from ...diagnosis.tracelog import Touch, Trace
from ...errors import SteadyError
from .calls import Call, inner

_OURS = str(Path(__file__).resolve().parents[2])
_TORCH = str(Path(torch.__file__).resolve().parent)
_MAX_LOCALS = 64
_MAX_ELEMENTS = 1 << 26


def explain(error: BaseException, calls: Sequence[Call]) -> str | None:
    """One sentence on the non-finite value near this error, or None if there is none. Reads the device; the last call
    of the model is made again where it helps, and its effects do not matter any more: the program is ending."""
    if not isinstance(error, RuntimeError | ValueError | ArithmeticError | AssertionError | IndexError):
        return None
    if isinstance(error, SteadyError):
        return None
    seen = next(_bad_locals(error.__traceback__), None)
    born = _born(calls[-1]) if calls else None
    if seen is None and born is None:
        return None
    parts = []
    if seen is not None:
        parts.append(f"where this error was raised, {seen}")
    if born is not None:
        parts.append(f"{'its' if seen else 'a'} bad value was born in {born}")
    return "; ".join(parts) + ". The error may well be a consequence of that."


def _bad_locals(trace: TracebackType | None) -> Iterator[str]:
    """Tensors with a NaN among the local variables of the program's frames, innermost frame first."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if file.startswith((_OURS, _TORCH, "<frozen", "<string", "<__array")):
            continue
        for name, value in list(frame.f_locals.items())[:_MAX_LOCALS]:
            if not isinstance(value, Tensor) or not value.is_floating_point() or value.device.type == "meta":
                continue
            if value.layout is not torch.strided or not 0 < value.numel() <= _MAX_ELEMENTS:
                continue
            bad = int(torch.isnan(value.detach()).sum())
            if bad:
                yield f"`{name}` ({file}:{line}) holds {bad} NaN among its {value.numel()} values"


@torch.enable_grad()
def _born(call: Call) -> str | None:
    """The op inside the model's last call that made the first NaN, by making the call again under a tracer."""
    if call.overwritten or not isinstance(call.module, nn.Module):
        return None
    tracer = Tracer(inner(call.module))
    trace = tracer.trace
    for name, value in walk_batch(call.batch):
        if isinstance(value, Tensor) and not value.is_sparse:
            trace.name(value, "batch", name)
    for name, parameter in inner(call.module).named_parameters():
        trace.name(parameter, "parameter", name)
    try:
        with tracer.tracing():
            call.again()
    except Exception:
        pass  # it raises again, as it did: what came before is in the trace
    trace.finish()
    last = _last_nan(trace)
    birth = find_birth(trace, [last]) if last is not None else None
    if birth is None:
        return None
    if birth.record is None:
        kind, name = birth.leaf or ("", "")
        return f"the {'argument' if kind == 'batch' else kind} {name}" if name else None
    return _in_words(birth.record)


def _last_nan(trace: Trace) -> Touch | None:
    """The last NaN that was written, as whoever read it next would have seen it."""
    for record in reversed(trace.records):
        for touch in record.writes:
            if math.isnan(trace.value(touch)):
                log = [ordinal for ordinal, _ in trace.writers[touch.storage]]
                return replace(touch, writes_before=log.index(record.ordinal) + 1)
        for touch in record.reads:
            if math.isnan(trace.value(touch)):
                return touch
    return None


def _in_words(record: Any) -> str:
    frame = record.stack.innermost
    module = f" of {record.module}" if record.module else ""
    place = f" ({frame.source}: {frame.text})" if frame is not None else ""
    return f"{record.op}{module}{place}, in {phase_of(record)}"
