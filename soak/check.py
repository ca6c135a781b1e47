"""Whether a guarded run was left alone, and whether a sick one was not."""

from __future__ import annotations

import re

from .observed import Observed
from .state import State, differences

_DIVERGENCE = re.compile(r"SY203|the loss stays at|loss and gradient run away")
_CLAIMS = re.compile(r"(?<!not )\b(refused|skipped|rolled back|halted|halved)\b|\bnot applied\b", re.IGNORECASE)


def disturbances(plain: State, observed: Observed, steps: int) -> list[str]:
    """What the guard did to a healthy run; an empty list means that it left the run alone."""
    found = []
    if observed.refused:
        found.append(f"refused {observed.refused}")
    if observed.counts.get("rolled_back"):
        found.append(f"rolled back {observed.counts['rolled_back']}")
    for name in ("lr_factor", "clip_factor"):
        smallest, last = observed.factors.get(f"smallest {name}", 1.0), observed.factors.get(name, 1.0)
        if smallest != 1.0 or last != 1.0:
            found.append(f"{name} {smallest:.3g} / {last:.3g}")
    if observed.halted:
        found.append("halted")
    if observed.incidents:
        found.append(f"{sum(observed.incidents.values())} incidents ({', '.join(observed.incidents)})")
    if observed.faults:
        found.append(f"guard failed in {', '.join(observed.faults)}")
    if claims := claims_of_refusal(observed):
        found.append(f"{sum(claims.values())} messages claim a refusal")
    if observed.counts.get("steps", 0) < steps:
        found.append(f"only {observed.counts.get('steps', 0)} of {steps} updates were guarded")
    if different := differences(plain, observed.state):
        found.append(f"{len(different)} of {len(plain)} end values differ, first {different[0]}")
    return found


def claims_of_refusal(observed: Observed) -> dict[str, int]:
    """Messages that say an update was refused, with how often."""
    return {sentence: count for sentence, count in observed.messages.items() if _CLAIMS.search(sentence)}


def omissions(plain_bad: list[str], observed: Observed) -> list[str]:
    """What the guard failed to do about a run that ends non-finite without it; an empty list means that it acted."""
    found = []
    if not plain_bad:
        found.append("the plain run stayed finite, so this twin is not sick")
    if not (observed.refused or observed.counts.get("rolled_back") or observed.halted):
        found.append("nothing was refused, rolled back or halted")
    if observed.bad:
        found.append(f"{len(observed.bad)} end values are not finite, first {observed.bad[0]}")
    if not observed.incidents:
        found.append("no incident")
    return found


def unreported(observed: Observed) -> list[str]:
    """What is missing about a run that diverged with finite values; an empty list means that it was reported."""
    reported = "SY203" in observed.findings or any(map(_DIVERGENCE.search, observed.messages))
    return [] if reported or observed.incidents else ["no incident and no SY203 finding"]
