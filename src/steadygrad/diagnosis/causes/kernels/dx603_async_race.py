"""The device computed with other bytes than it was meant to.

What it sees
    A failing step that nothing else explains, which is finite again and again when its non-blocking copies, or the
    work that it gave to other streams, are waited for, and fails when they are not.

Why it hurts
    A pinned buffer that is refilled before its copy has finished feeds the device a mixture of two batches. What
    another stream computes may not be there yet when it is read.

Smallest example
    buffer.copy_(batch); x = buffer.to("cuda", non_blocking=True); buffer.copy_(next_batch)
    # fixed
    x = buffer.to("cuda", non_blocking=True); torch.cuda.current_stream().synchronize(); buffer.copy_(next_batch)

What to do
    Wait for the copy (an event), or use a buffer for each copy in flight. Let the stream that reads a result wait for
    the one that computes it (`wait_stream`).

Safety
    Exact.

References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX603", "async_race", "The device computed with other bytes than it was meant to.")


def match(e: Evidence) -> Match | None:
    if e.proved_by == "wait_for_copy":
        return Match(0.95, "the step is finite when queued copies are waited for, and not otherwise")
    if e.proved_by == "wait_for_stream":
        return Match(0.95, "the step is finite when other streams are waited for, and not otherwise")
    return None
