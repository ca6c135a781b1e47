"""Silent trouble that the guard's sampled checks reported, looked for again by the clinic with its own eyes.

A sampled check reads a slice of every tensor at a few steps. Before the clinic names a cause it runs a few steps over
good batches from just before, under the same vigil that watches any other patient. What it does not see there itself
stays what it was: a finding without a diagnosis.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ..records import Diagnosis, Finding
from .diagnose import diagnose
from .patient import FollowedPatient
from .replay import replay
from .usage import parameters_read
from .vigil import PATIENCE, RISEN, Suspicion, Vigil

EXPLAINS = {
    "zero_gradient": frozenset({"SY401", "SY404"}),
    "unmoved": frozenset({"SY402", "SY406"}),
    "outside_optimizer": frozenset({"SY405"}),
    "spike": frozenset({"SY407"}),
}
"""Which findings of the vitals are the same trouble as what a vigil calls by this name."""
ENOUGH_STEPS = PATIENCE
"""Steps needed to see that something never happens."""

Answer = tuple[Diagnosis, tuple[Finding, ...]]


def look_into(patient: FollowedPatient, findings: Sequence[Finding], *, depth: str = "full") -> Answer | None:
    """Diagnose what these findings say of a run in which nothing is non-finite; None where the clinic sees none of it.

    Gives the findings that are explained by it, too. Runs a few steps again and puts everything back bit for bit.
    Syncs with the host.
    """
    codes = {found.code for found in findings}
    if not any(codes & explained for explained in EXPLAINS.values()):
        return None
    with patient.examining():
        suspicion = confirm(patient, codes)
    explained = EXPLAINS.get(suspicion.kind, frozenset()) if suspicion is not None else frozenset()
    told = tuple(found for found in findings if found.code in explained)
    if suspicion is None or not told:
        return None
    return diagnose(patient, depth=depth, suspicion=replace(suspicion, step=patient.facts.step)), told


def _learning(patient: FollowedPatient) -> bool:
    """Whether the loss of the steps so far falls: then a few gains that stand still in half precision do no harm."""
    losses = [r.loss for r in patient.facts.history if r.applied and math.isfinite(r.loss)]
    third = max(1, len(losses) // 3)
    return len(losses) >= ENOUGH_STEPS and sum(losses[-third:]) < 0.98 * sum(losses[:third])


def _risen(patient: FollowedPatient) -> bool:
    """Whether the loss has left the range it began in, and not come back."""
    losses = [abs(r.loss) for r in patient.facts.history if r.applied and math.isfinite(r.loss)]
    return len(losses) >= ENOUGH_STEPS and min(losses[1:]) > RISEN * losses[0] > 0


def confirm(patient: FollowedPatient, codes: Collection[str]) -> Suspicion | None:
    """What a vigil over this step and those after it suspects. Only inside an examination."""

    def reads(_patient: Any) -> frozenset[str]:
        return parameters_read(patient)

    vigil = Vigil(trusts=lambda _patient: True, reads=reads)
    suspicion = vigil.look(0, replay(patient), patient)
    ahead = 0
    while suspicion is None and (batches := patient.following(ahead := ahead + 1)) is not None:

        def prepare(ahead: int = ahead) -> None:
            patient.prepare_following(ahead)

        suspicion = vigil.look(ahead, replay(patient, restore=False, batches=batches, prepare=prepare), patient)
    if suspicion is None and set(codes) & EXPLAINS["unmoved"]:
        # Where the rest learns only a part of its own is worth a word: a temperature, the weights of some losses.
        still = vigil.standing_apart() if _learning(patient) else vigil.standing_still()
        suspicion = Suspicion(symptom="silent", step=0, kind="unmoved", names=still) if still else None
    told = suspicion is not None and set(codes) & EXPLAINS.get(suspicion.kind, frozenset())
    if not told and set(codes) & EXPLAINS["spike"] and (vigil.strides_too_long() or _risen(patient)):
        suspicion = Suspicion(symptom="spike", step=0, kind="spike")
    return suspicion
