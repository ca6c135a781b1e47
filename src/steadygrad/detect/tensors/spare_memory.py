"""Whether there is memory to spare for a look at a run: a run that fits exactly must go on to fit."""

from __future__ import annotations

import torch

_SHARE = 0.4


def memory_to_spare(device: torch.device) -> bool:
    """Whether the run's own peak, so far, is well below what it may use of its device. Ask after a whole step. Does not
    sync; False where it is not known."""
    if device.type == "cpu":
        return True
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    if device.type != "cuda" or fraction is None:
        return False
    total = torch.cuda.get_device_properties(device).total_memory
    reserved, (free, _) = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)
    limit = min(total * float(fraction(device)), torch.cuda.memory_reserved(device) + free)
    return bool(reserved < _SHARE * limit)
