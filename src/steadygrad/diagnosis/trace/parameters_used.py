"""Which parameters a forward pass uses: read on the way to the loss, and not behind a term that is switched off."""

from __future__ import annotations

from ..locate.origin import ancestors
from ..replay.replay_step import replay
from ..replay.replayable import Replayable
from .trace_log import OpRecord, Trace
from .tracer import Tracer


def parameters_read(replayable: Replayable) -> frozenset[str]:
    """The names of the parameters that a forward pass of this step uses, by whatever path."""
    tracer = Tracer(replayable.model, owners=replayable.facts.owners)
    replay(replayable, tracer=tracer, until="forward")
    tracer.trace.finish()
    return parameters_behind(tracer.trace)


def parameters_behind(trace: Trace) -> frozenset[str]:
    """The parameters that a forward pass read, but for those behind a term that was multiplied by an exact zero.

    A weight of zero switches a term off on purpose: it is annealed, or its turn has not come yet.
    """
    taken = (trace.storage_labels.get(left.storage, ("", "")) for left in trace.exits)
    read = _parameters(trace, trace.records) | {name for kind, name in taken if kind == "parameter"}
    off = [r for r in trace.records if r.op == "mul" and not r.backward and _by_zero(trace, r)]
    if not off:
        return frozenset(read)
    scalars = [r for r in trace.records if r.stage == "forward" and any(t.shape == () for t in r.writes)]
    alive = ancestors(trace, scalars[-1], limit=100_000, stop=frozenset(r.ordinal for r in off)) if scalars else []
    reached = _parameters(trace, [*scalars[-1:], *alive])
    behind = _parameters(trace, [r for muted in off for r in (muted, *ancestors(trace, muted, limit=100_000))])
    return frozenset(name for name in read if name in reached or name not in behind)


def _parameters(trace: Trace, records: list[OpRecord]) -> set[str]:
    labels = (trace.label(touch) for record in records for touch in record.reads)
    return {name for kind, name in labels if kind == "parameter"}


def _by_zero(trace: Trace, record: OpRecord) -> bool:
    """Whether one factor of a product is the number zero."""
    if len(record.reads) == 1:
        return 0.0 in record.scalars
    return any(t.shape == () and t.reading is not None and trace.value(t) == 0.0 for t in record.reads)
