"""Where the stable parts leave word of what they had to do, until someone who can act on it comes by.

A logits processor that repairs a NaN stops a crash and cures nothing, so it also posts a finding here. A loss that had
nothing to average over answers zero, and counts it here. Whoever owns the training step (the guard, or a loop of yours)
calls `take` and acts: the guard refuses the update of a step before which a fatal finding was posted.

There is one board for the process, because a processor inside `generate` and the guard around the step never meet;
every part also takes its own board where it is made or called.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..records import Finding, Severity
from .rules.sy503_degenerate_input import RULE as DEGENERATE_INPUT

if TYPE_CHECKING:
    from torch import Tensor

_MOST_FINDINGS = 64
_MOST_PENDING = 256

MEANINGS = {
    "empty_mask": "a loss had no place left to average over, and was zero without a gradient",
    "zero_vector": "a vector was too short to have a direction, and was not normalised to length one",
    "empty_support": "no token was left to compare teacher and student on, and the row was zero without a gradient",
    "constant_group": "all rewards of a group were alike, and its advantages are zero",
    "unscored_reward": "a reward was not finite, and its advantage is zero",
}


class Board:
    """Findings and counts that wait to be taken. Every method may be called from any thread.

    Findings with the same code and subject are kept as one: their evidence under names that begin with `num_` is
    added up. So a processor that repairs each of 512 tokens leaves one finding, and memory stays bounded.

    Args:
        none.

    Returns:
        A board: `take(step)` returns the findings since the last time, `counts()` all counts.

    Example:
        >>> board = sg.numerics.Board()
        >>> mean = sg.numerics.masked_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool), report_to=board)
        >>> float(mean), board.counts()["empty_mask"]
        (0.0, 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._findings: dict[tuple[str, str], Finding] = {}
        self._pending: dict[tuple[str, Any], list[Tensor]] = {}
        self._totals: Counter[str] = Counter()
        self._muted = threading.local()

    def post(self, finding: Finding) -> None:
        """Leave a finding. Host only; never touches a tensor."""
        if self._is_muted():
            return
        key = (finding.code, finding.subject)
        with self._lock:
            waiting = self._findings.get(key)
            if waiting is not None:
                self._findings[key] = replace(waiting, evidence=_added(waiting.evidence, finding.evidence))
            elif len(self._findings) < _MOST_FINDINGS:
                self._findings[key] = finding

    def count(self, name: str, flags: Tensor) -> None:
        """Count the true ones among `flags` under a name of `MEANINGS`. Keeps a few bytes on the device and does not
        sync with the host: the flags are added up when they are taken. Does nothing inside a compiled region."""
        import torch

        # A subclass (fake, distributed) belongs to a mode or a mesh that may be gone when the flags are read.
        if torch.compiler.is_compiling() or type(flags) is not torch.Tensor or self._is_muted():
            return
        key = (name, flags.device)
        number = flags.detach().sum() if flags.dim() else flags.detach()
        with self._lock:
            pending = self._pending.setdefault(key, [])
            pending.append(number.long())
            if len(pending) >= _MOST_PENDING:
                self._pending[key] = [torch.stack(pending).sum()]

    def take(self, *, step: int = 0, rank: int = 0, wait: bool = True) -> tuple[Finding, ...]:
        """Everything that waits, stamped with the step and rank of the taker; the board is empty afterwards.

        With `wait=False` nothing is read off a device other than the CPU, so it never syncs with the host; counts
        that lie on a GPU then go on waiting.
        """
        with self._lock:
            found = list(self._findings.values())
            self._findings.clear()
        for name, number in sorted(self._read(wait).items()):
            if number:
                found.append(_degenerate(name, number))
        return tuple(replace(finding, step=step, rank=rank) for finding in found)

    @property
    def urgent(self) -> bool:
        """Whether a fatal finding waits. Host only."""
        with self._lock:
            return any(finding.severity is Severity.FATAL for finding in self._findings.values())

    def counts(self) -> dict[str, int]:
        """How often each thing happened since the process began. One host read for each device."""
        read = self._read(wait=True)
        with self._lock:
            totals = {name: number for name, number in self._totals.items() if number}
            # What was read here has not been taken yet: restore it for the next `take`.
            self._untaken(read)
        return totals

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Nothing that this thread does inside is posted or counted: for steps that are only run again."""
        before = self._is_muted()
        self._muted.value = True
        try:
            yield
        finally:
            self._muted.value = before

    def _is_muted(self) -> bool:
        return bool(getattr(self._muted, "value", False))

    def _untaken(self, numbers: dict[str, int]) -> None:
        import torch

        for name, number in numbers.items():
            if number:
                self._pending.setdefault((name, torch.device("cpu")), []).append(torch.tensor(number))
                self._totals[name] -= number

    def _read(self, wait: bool) -> Counter[str]:
        with self._lock:
            keys = [key for key in self._pending if wait or key[1].type == "cpu"]
            taken = {key: self._pending.pop(key) for key in keys}
        read: Counter[str] = Counter()
        for (name, _), numbers in taken.items():
            read[name] += sum(int(number) for number in numbers) if len(numbers) < 2 else _total(numbers)
        with self._lock:
            self._totals.update(read)
        return read


def _total(numbers: list[Tensor]) -> int:
    import torch

    return int(torch.stack(numbers).sum())


def _added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    sums = {key: before.get(key, 0) + value for key, value in now.items() if key.startswith("num_")}
    return {**now, **before, **sums}


def _degenerate(name: str, number: int) -> Finding:
    times = "once" if number == 1 else f"{number} times"
    return Finding(
        code=DEGENERATE_INPUT.code,
        slug=DEGENERATE_INPUT.slug,
        severity=Severity.NOTE,
        step=0,
        subject=name,
        detail=f"{times}: {MEANINGS.get(name, name)}",
        evidence={"num_times": number},
    )


_BOARD = Board()


def board() -> Board:
    """The board of this process.

    Args:
        none.

    Returns:
        The Board that parts report to unless they are given another as `report_to`.

    Example:
        >>> sg.numerics.board() is sg.numerics.board()
        True
    """
    return _BOARD
