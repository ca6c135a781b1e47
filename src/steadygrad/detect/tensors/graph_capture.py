"""Whether the program is recording a CUDA graph: then nothing of ours may run on its stream or read the device.

A read, a copy or a look at the random state inside of a capture invalidates it, and what is recorded runs again with
every replay. So each hook and patch of ours asks first, and only calls the original.
"""

from __future__ import annotations

import torch

NOT_CHECKED = (
    "an update was recorded into a CUDA graph: what a replayed graph does is not seen, so its updates are not checked, "
    "not counted and not refused"
)


def capturing() -> bool:
    """Whether this thread's current stream is being captured. Host only, well under a microsecond."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
