"""How much memory a run uses and how much is left: read on the host, now and then, without a device sync."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import torch

from ...detect.tensors.foreign_objects import getattr
from ...records.step_record import GPU_MEMORY, GPU_MEMORY_PEAK, HOST_MEMORY

_UNKNOWN = 1 << 33
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


def free_device_bytes() -> int:
    """What the current GPU could still give to tensors of this process. Does not wait for it."""
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        return _UNKNOWN
    stats = torch.cuda.memory_stats()
    reserved = int(stats.get("reserved_bytes.all.current", 0))
    free, whole = torch.cuda.mem_get_info()
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)()  # of the device, for this process
    return max(0, min(free, int(share * whole) - reserved) + reserved - int(stats.get("allocated_bytes.all.peak", 0)))


def free_host_bytes() -> int:
    """What the host can still give to this process: of the machine, and of the container or job it runs in."""
    machine = _available()
    if machine is None:
        try:
            machine = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            machine = _UNKNOWN
    return max(0, min(machine, *_free_in_containers(), sys.maxsize))


def _available() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")), None)
    except (OSError, ValueError):  # no such file on this system
        return None


def _free_in_containers(processes: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> Iterator[int]:
    """What the limits of the control groups around this process leave, of both kinds of them. What files take in the
    cache is given up when memory is short."""
    try:
        with open(processes) as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:  # no such file on this system
        return
    for _, controllers, path in groups:
        if not controllers:
            names, folder = ("memory.max", "memory.current"), root
        elif "memory" in controllers.split(","):
            names, folder = ("memory.limit_in_bytes", "memory.usage_in_bytes"), f"{root}/memory"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            found = _left_in("/".join((folder, *parts[:depth])), *names)
            if found is not None:
                yield found


def _left_in(folder: str, limit: str, usage: str) -> int | None:
    try:
        with (
            open(f"{folder}/{limit}") as most,
            open(f"{folder}/{usage}") as now,
            open(f"{folder}/memory.stat") as parts,
        ):
            cached = next((int(line.split()[1]) for line in parts if line.startswith("inactive_file ")), 0)
            return int(most.read()) - int(now.read()) + cached
    except (OSError, ValueError, IndexError):  # no such group, or "max": no limit
        return None
