"""One named term of the loss is NaN or infinite.

What it sees
    A loss given as named terms has at least one that is not finite. The finding names them, and those that were
    fine.

Why it hurts
    The total is lost with it, but only this term needs a fix: a run whose distillation term overflows can go on
    with cross-entropy alone.

Smallest example
    terms = {"ce": ce, "kd": kd * float("inf"), "loss": ce + kd}
    # fixed
    terms = {"ce": ce, "kd": kd.clamp(max=1e4), "loss": ce + kd.clamp(max=1e4)}

What to do
    If it is always the same term, the policy leaves it out for a while and tries it again after a healthy stretch.
    Repair the term: see the diagnosis.

Safety
    Naming is exact. Leaving a term out changes what is trained, so it is done only after a streak, is journaled,
    and is taken back.

References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html
"""

from __future__ import annotations

import math

from ....policy import Policy
from ....records import Finding, Reading, Severity
from ....records.rules import Rule
from ...history import History
from ...make_finding import finding

RULE = Rule("SY102", "non_finite_term", "One named term of the loss is NaN or infinite.")
TOTAL = "loss"


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; looks at one float a term. Terms that were left out of the loss must not be in the reading."""
    bad = [name for name, value in reading.terms.items() if name != TOTAL and not math.isfinite(value)]
    if not bad:
        return None
    fine = [name for name in reading.terms if name != TOTAL and name not in bad]
    said = ", ".join(f"{name} is {reading.terms[name]}" for name in bad)
    others = f"; finite: {', '.join(fine)}" if fine else ""
    return finding(
        RULE,
        reading,
        Severity.FATAL,
        f"loss term {said}{others}",
        subject=", ".join(bad),
        terms=bad,
        finite_terms=fine,
        values={name: reading.terms[name] for name in bad},
    )


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=3, loss=math.nan, terms={"ce": 2.1, "kd": math.inf, "loss": math.nan}), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """The total overflowed although every term is finite: no term is the cause."""
    return Reading(step=3, loss=math.inf, terms={"ce": 3e38, "kd": 3e38, "loss": math.inf}), History()
