"""Everything there is to say about one settled step."""

from __future__ import annotations

from math import isfinite

from ..policy import Policy
from ..records import Finding, Reading, Severity
from .detectors import ALL, OF_THE_RUN
from .history import History
from .refusal_rule import all_finite

_GRAVITY = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_DETECT = tuple(module.detect for module in ALL)
_DETECT_OF_THE_RUN = tuple(module.detect for module in OF_THE_RUN)


def judge(reading: Reading, history: History, policy: Policy) -> tuple[Finding, ...]:
    """The findings of all detectors, gravest first; call it before the reading is admitted to the history.

    Host only. A finite step below its limits costs a few comparisons: the detectors that judge a step by its own
    numbers are passed over.
    """
    if not _looks_fine(reading, history, policy):
        detectors = _DETECT
    elif history.uneventful(reading, policy):
        return ()
    else:
        detectors = _DETECT_OF_THE_RUN
    found = [finding for detect in detectors if (finding := detect(reading, history, policy)) is not None]
    if len(found) > 1:
        found.sort(key=lambda finding: (_GRAVITY[finding.severity], finding.code))
    return tuple(found)


def _looks_fine(reading: Reading, history: History, policy: Policy) -> bool:
    if reading.refused or not (isfinite(reading.loss) and isfinite(reading.grad_norm)):
        return False
    if (reading.terms or reading.micro_losses) and not all_finite(reading):
        return False
    if reading.bad_parameters or reading.bad_state or reading.bad_buffers or reading.bad_inputs:
        return False
    if policy.max_norm_to_apply is not None and reading.grad_norm > policy.max_norm_to_apply:
        return False
    if history.seen_as_high(reading, policy):
        return True
    limits = history.limits_of(reading, policy)
    return reading.grad_norm <= limits.grad_norm and reading.loss <= limits.loss
