"""What ranks leave for each other outside any collective: that they have come, and why they stop.

A collective cannot say why it failed. The store that the ranks met at can: a rank that stops leaves a sentence there,
and the others, whose collective has failed, read it. No one waits here for longer than a moment.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...records.errors import RanksError

CHECK_IN_S = 120.0
_LISTEN_S = 1.0
_guards = 0


def check_in(rank: int, size: int, *, wait_s: float | None = None) -> Any:
    """Meet all ranks that make a guard, and return their own store; one sentence if some do not come.

    Making the group itself would wait for as long as the program's own collectives may take.
    """
    global _guards
    _guards += 1
    shared = dist.distributed_c10d._get_default_store()
    # torchrun may keep one store for all its attempts, and the words of the last one must not be heard in this one.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.distributed_c10d.PrefixStore(f"steadygrad/{attempt}/guard{_guards}", shared)
    store.set(f"here{rank}", "1")
    wait_s = CHECK_IN_S if wait_s is None else wait_s
    try:
        store.wait([f"here{other}" for other in range(size)], timedelta(seconds=wait_s))
    except RuntimeError as error:
        missing = [str(other) for other in range(size) if not _there(store, f"here{other}")]
        raise RanksError(
            f"Rank {rank} made a guard and waited {wait_s:g} s for rank {', '.join(missing) or '?'} to make one too. "
            "A guard decides together with all ranks: make it on every rank, in the same order."
        ) from error
    return store


class ExitMessages:
    """One sentence a rank, left when it stops."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size

    def say(self, sentence: str) -> None:
        """Leave a sentence, once; the first is the reason, what follows are its consequences."""
        with contextlib.suppress(RuntimeError):
            if not _there(self._store, f"words{self._rank}"):
                self._store.set(f"words{self._rank}", sentence[:1000])

    def of_the_others(self) -> str:
        """The messages of the other ranks, and which left none. Listens for a second at most."""
        heard: dict[int, str] = {}
        deadline = time.monotonic() + _LISTEN_S
        others = [rank for rank in range(self._size) if rank != self._rank]
        while len(heard) < len(others):
            for rank in others:
                with contextlib.suppress(RuntimeError):
                    if rank not in heard and _there(self._store, f"words{rank}"):
                        heard[rank] = self._store.get(f"words{rank}").decode("utf-8", "replace")
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        reasons = [heard[rank] for rank in sorted(heard) if "found the others gone" not in heard[rank]]
        silent = [str(rank) for rank in others if rank not in heard]
        if silent:
            reasons.append(f"no message from rank {', '.join(silent)}: killed or hanging")
        return "; ".join(reasons or [heard[rank] for rank in sorted(heard)])


def _there(store: Any, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:
        return False
