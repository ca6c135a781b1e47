"""The exceptions steadygrad raises.

    SteadyError                 the root: catch this to catch all of ours
    ├── UsageError              a mistake in the call (also a ValueError)
    ├── ClosedError             the guard was used after close()
    ├── TrainingHalted          the policy gave up: budgets are spent; exit code 23
    ├── RanksError              the ranks of a run fell out of step, or one of them is gone; exit code 24
    ├── JournalError            a run directory cannot be written or read
    └── CapsuleError            a capsule is missing, torn, tampered with or from another version

Every message says what happened, why it matters and what to do next.

An internal error is never raised: it ends in the log and in the run directory, with the code of the part that failed
(`steady explain IE401`).
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple


class SteadyError(Exception):
    """Root of every exception steadygrad raises on purpose.

    Args:
        message: what happened, why it matters and what to do next.

    Returns:
        An exception; `exit_code` is what the command `steady` exits with.

    Example:
        >>> try:
        ...     sg.Policy.named("reckless")
        ... except sg.SteadyError as error:
        ...     print(type(error).__name__)
        UsageError
    """

    exit_code = 1


class UsageError(SteadyError, ValueError):
    """The call cannot work as written; the message says which argument and what to pass instead.

    Args:
        message: which argument, and what to pass instead.

    Returns:
        An exception that is a ValueError too; exit code 2.

    Example:
        >>> try:
        ...     sg.Policy(lr_factor=2.0)
        ... except ValueError as error:
        ...     print(error)
        Policy 'balanced' cannot work: lr_factor must lie between 0 and 1, for example 0.5.
    """

    exit_code = 2


class ClosedError(SteadyError, RuntimeError):
    """A closed guard was asked to do something."""


class TrainingHalted(SteadyError, RuntimeError):
    """The policy stopped the run because its budgets are spent.

    Args:
        message: at which step, why, what state is left, and where the journal is.

    Returns:
        An exception; exit code 23. The weights are those from before the refused updates.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> policy = sg.Policy.named("balanced").but(skip_streak_halt=2)
        >>> guard = sg.Guard(model, optimizer, lambda model, batch: model(batch).mean(), policy=policy)
        >>> try:
        ...     for batch in [torch.full((8, 4), float("nan"))] * 5:
        ...         outcome = guard.step(batch)
        ... except sg.TrainingHalted as error:
        ...     print(str(error).partition(":")[0])
        Training was halted at step 1
    """

    exit_code = 23

    @classmethod
    def at(cls, step: int, reason: str, journal: object = None, *, poisoned: bool = False) -> TrainingHalted:
        """The exception in words: where, why, what state is left, and where to read more."""
        where = f" The journal is in {journal}." if journal else ""
        left = "The refused updates were not applied."
        if poisoned:
            left = (
                "The weights or the optimizer state were bad before this step, so skipping cannot help: start again "
                "from a good checkpoint (steady scan finds it)."
            )
        return cls(f"Training was halted at step {step}: {reason}. {left}{where}")


class RanksError(SteadyError, RuntimeError):
    """The ranks of a run no longer take the same steps, or one of them is gone. Raised on every rank that is left."""

    exit_code = 24


class JournalError(SteadyError, OSError):
    """A run directory cannot be written or read."""

    exit_code = 2


class CapsuleError(SteadyError, ValueError):
    """A capsule cannot be used, and why."""

    exit_code = 2


TABLE = Path(__file__).with_name("internal_errors.toml")
"""What each part that can fail does, and what is missing without it; read when something has failed."""


class InternalError(NamedTuple):
    """A part, its code, what it does, and what is missing once it has failed."""

    part: str
    code: str
    does: str
    without: str


@cache
def internal_errors() -> dict[str, InternalError]:
    """All entries by the name of their part."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["part"]
    return {row["name"]: InternalError(row["name"], row["code"], row["does"], row["without"]) for row in rows}


def code_of(part: str) -> str:
    """The code of a part; that of parts without an entry where it has none. Never raises."""
    try:
        known = internal_errors()
        return known.get(part, known["another"]).code
    except (OSError, ValueError, KeyError):
        return "IE100"
