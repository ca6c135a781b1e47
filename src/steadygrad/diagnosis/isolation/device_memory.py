"""Memory that a diagnosis may take, asked for before it is taken; and what is done where it runs out all the same.

A device is "limited" where it is known how much it can still give: that is asked on CUDA. What is not needed at the
moment goes to the host, which is asked too: a host that is out of memory ends processes and gives no reason.
"""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...engine.record.memory_use import free_host_bytes

SPARE = 2
"""A copy stays on the device only where so many times its size is free there."""
HOST_SHARE = 15 / 16
"""Of what is free on the host so much is taken at most."""
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class NotEnoughMemory(MemoryError):
    """Memory was asked for and not taken, because there is not so much."""


def spare_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a CUDA device, the allocator's own free blocks included; None elsewhere."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: 1.0)(device)
    allowed = int(fraction * total) - reserved
    return max(0, min(free, allowed)) + reserved - torch.cuda.memory_allocated(device)


def taken_by_a_step(device: torch.device) -> int:
    """Bytes that the program has taken on a device beside what it holds now: the most that it ever held, less that."""
    if device.type != "cuda":
        return 0
    return max(0, _most_of_program(device.index or 0) - torch.cuda.memory_allocated(device))


_apart: dict[int, tuple[int | None, int]] = {}
"""By device: the most that was ever held after a diagnosis (None while one runs), and what it was before."""


def _most_of_program(index: int) -> int:
    now = torch.cuda.max_memory_allocated(index)
    after, before = _apart.get(index, (-1, 0))
    return before if after in (None, now) else now


@contextmanager
def taken_apart() -> Iterator[None]:
    """Around a diagnosis: what it takes itself is not counted as what the program takes."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    inner = any(after is None for after, _ in _apart.values())
    devices = range(torch.cuda.device_count()) if used and not inner else ()
    _apart.update({index: (None, _most_of_program(index)) for index in devices})
    try:
        yield
    finally:
        _apart.update({index: (torch.cuda.max_memory_allocated(index), _apart[index][1]) for index in devices})


def spare_by_device(tensors: Iterable[Tensor]) -> dict[torch.device, int]:
    """What the limited devices among those of these tensors can still give."""
    spare = {device: spare_memory(device) for device in {tensor.device for tensor in tensors}}
    return {device: free for device, free in spare.items() if free is not None}


def short_of_memory(tensors: Iterable[Tensor]) -> str:
    """Which device of these tensors has no memory for one more training step, as a clause; "" where each has."""
    for device, free in spare_by_device(tensors).items():
        taken = taken_by_a_step(device)
        if taken > free:
            return f"a step takes {in_words(taken)} and {in_words(free)} are free on {device}"
    return ""


def has_room(needed: Mapping[torch.device, int], *, beside_a_step: bool) -> bool:
    """Whether copies of so many bytes can stay on their devices, beside a training step or alone."""
    for device, size in needed.items():
        free = spare_memory(device)
        most = max(SPARE * size, size + taken_by_a_step(device)) if beside_a_step else SPARE * size
        if free is not None and most > free:
            return False
    return True


def host_has_room(size: int) -> bool:
    return size <= HOST_SHARE * free_host_bytes()


def ask_host(size: int) -> None:
    """Raise NotEnoughMemory where the host has not so many bytes to spare."""
    if not host_has_room(size):
        free = free_host_bytes()
        raise NotEnoughMemory(f"needs {in_words(size)} of host memory, {in_words(free)} free")


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def copied(tensor: Tensor) -> Tensor:
    """A copy on the same device."""
    return tensor.detach().clone()


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy that takes no device memory."""
    return tensor.detach().to("cpu", copy=True)


def copied_to(device: torch.device, tensor: Tensor) -> Tensor:
    """A copy on a device."""
    return tensor.to(device, copy=True)


def in_words(size: float) -> str:
    """Bytes in the largest unit of which there is a tenth, for a person to read."""
    return next(
        (f"{size / unit:.3g} {name}" for name, unit in reversed(_UNITS.items()) if size >= unit / 10), f"{size} bytes"
    )


# -- out of memory


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or the one behind it, says that memory ran out on any device."""
    return _short(error) is not None


def shortage(error: BaseException, free_before: dict[torch.device, int]) -> str:
    """What would have been needed and what was free before, as a clause. To be asked before `forget(error)`, while what
    had been taken is still held."""
    short = _short(error)
    if isinstance(short, NotEnoughMemory):
        return str(short)
    tried = _TRIED.search(str(short))
    more = int(float(tried[1]) * _UNITS[tried[2]]) if tried else 0
    for device, before in free_before.items():
        taken = before - (spare_memory(device) or 0)
        if taken + more > before:
            return f"needs at least {in_words(taken + more)} on {device}, {in_words(before)} free"
    return "out of memory"


def _short(error: BaseException) -> BaseException | None:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError | torch.OutOfMemoryError):
            return current
        if isinstance(current, RuntimeError) and any(words in str(current) for words in _OUT_OF_MEMORY):
            return current
        current = current.__cause__ or current.__context__
    return None


def forget(error: BaseException) -> None:
    """Let go of everything an exception keeps alive: the frames it went through hold whole forward passes."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        pending += [current.__cause__, current.__context__]
        if current.__traceback__ is not None:
            traceback.clear_frames(current.__traceback__)
        current.__traceback__ = current.__cause__ = current.__context__ = None


def release_memory() -> None:
    """Give unused memory back, on the host and on a CUDA device that is in use."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
