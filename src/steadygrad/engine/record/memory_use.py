"""How much memory a run uses: read on the host, at most every 50 steps or once a second, without a device sync."""

from __future__ import annotations

import os

import torch

from ...records.step_record import GPU_MEMORY, GPU_MEMORY_PEAK, HOST_MEMORY

EVERY_STEPS = 50
EVERY_SECONDS = 1.0


class MemoryUse:
    """Samples the memory of this process and of the fullest GPU it uses."""

    def __init__(self) -> None:
        self._steps_left = 0
        self._due = 0.0

    def sample(self, now: float) -> dict[str, float]:
        """Bytes by name where a sample is due, and otherwise nothing."""
        self._steps_left -= 1
        if self._steps_left > 0 and now < self._due:
            return {}
        self._steps_left, self._due = EVERY_STEPS, now + EVERY_SECONDS
        return measured()


def measured() -> dict[str, float]:
    """The resident memory of this process, and what its tensors take on the GPU that holds most: now and at most."""
    found = {}
    try:
        with open("/proc/self/statm", "rb") as statm:
            found[HOST_MEMORY] = float(int(statm.read(256).split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):  # no such file on this system: the host's memory is not recorded
        pass
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        used = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
        found[GPU_MEMORY] = float(max(stats.get("allocated_bytes.all.current", 0) for stats in used))
        found[GPU_MEMORY_PEAK] = float(max(stats.get("allocated_bytes.all.peak", 0) for stats in used))
    return found
