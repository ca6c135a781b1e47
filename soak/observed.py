"""What a guarded run did, as far as a user could see it: its summary, its incidents, its messages and its end state."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .state import State, bad_values, state_of
from .training import Training

_COUNTED = ("steps", "applied", "skipped", "overflows", "rolled_back")
_FACTORS = ("lr_factor", "clip_factor")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")


@dataclass(kw_only=True)
class Observed:
    """One guarded run.

    Attributes:
        state, bad: digests of what it left behind, and the names in it that are not finite.
        counts: steps, applied, skipped, overflows and rolled_back of the summary.
        factors: the learning-rate and clip factor at the end, where the entry point has them, and the smallest ever.
        findings: codes of incidents and sampled checks, with how often.
        incidents: symptoms, with how often.
        messages: what the logger "steadygrad" said at WARNING or above, numbers left out, with how often.
    """

    state: State
    bad: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    incidents: dict[str, int] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    halted: str | None = None

    @property
    def refused(self) -> int:
        """Updates that were not applied, without those that a loss scale dropped for its own overflow."""
        return self.counts.get("skipped", 0) - self.counts.get("overflows", 0)


class Messages(logging.Handler):
    """Collects what the package says to its user."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self.counted: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.counted[without_numbers(record.getMessage())] += 1


@contextmanager
def collected_messages() -> Iterator[Messages]:
    """Everything the logger "steadygrad" says inside, kept from the screen."""
    logger, handler = logging.getLogger("steadygrad"), Messages()
    propagates, level = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logger.setLevel(level)


def without_numbers(sentence: str) -> str:
    """A sentence in which each number is a star, so that equal ones can be counted."""
    return _NUMBER.sub("*", " ".join(sentence.split()))[:200]


def observe(training: Training, guards: Iterable[Any], messages: Messages, halted: str | None) -> Observed:
    """Read the guards of one training; call it before they are closed."""
    summaries, incidents, vitals = [], [], []
    for guard in guards:
        summaries.append(guard.summary())
        incidents += list(guard.incidents)
        vitals += list(getattr(guard, "vitals", ()))
    findings = [found.code for incident in incidents for found in incident.findings] + [v.code for v in vitals]
    decisions = [incident.decision for incident in incidents if incident.decision is not None]
    factors = {name: min([float(s[name]) for s in summaries if name in s], default=1.0) for name in _FACTORS}
    for name in _FACTORS:
        factors[f"smallest {name}"] = min([factors[name], *(getattr(d, name) for d in decisions)])
    if halted is None and any(summary.get("halted") for summary in summaries):
        halted = "halted"
    return Observed(
        state=state_of(training),
        bad=bad_values(training),
        counts={key: sum(int(s.get(key) or 0) for s in summaries) for key in _COUNTED},
        factors=factors,
        findings=dict(Counter(findings)),
        incidents=dict(Counter(incident.symptom for incident in incidents)),
        messages=dict(messages.counted),
        faults=sorted({str(name) for s in summaries for name in s.get("guard_faults") or ()}),
        halted=halted,
    )
