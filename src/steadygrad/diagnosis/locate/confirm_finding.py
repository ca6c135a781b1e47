"""A silent problem that the sampled checks reported, looked for again in a replay of a few steps.

A sampled check reads a slice of every tensor at a few steps. Before a cause is named, a few steps over good batches
from just before are replayed, observed completely and judged by the same rules. What they do not show there stays what
it was: a finding without a diagnosis.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from ...checkup.trials.batch_rules import detached_graph
from ...detect.observations.observed_run import PATIENCE, NotAsked, ObservedRun, Suspicion
from ...detect.patterns.loss_jumps_and_stays import RISEN, strides_too_long
from ...detect.sampled.rules.parameter_never_changes import standing_apart, standing_still
from ...records import Diagnosis, Finding
from ...records.diagnosis import silent_diagnosis
from ..diagnose import diagnose
from ..replay.replay_observation import ReplayObservation, complete
from ..replay.replay_step import CANNOT_RUN, ReplayChange, replay
from ..replay.replayable import FollowedReplayable, Replayable
from ..trace.parameters_used import parameters_read
from .constant_terms import constant_term, trained_by, without_gradient
from .lost_gradient import lost_moments

EXPLAINS = {
    "zero_gradient": frozenset({"SY401", "SY404"}),
    "unmoved": frozenset({"SY402", "SY406"}),
    "outside_optimizer": frozenset({"SY405"}),
    "spike": frozenset({"SY407"}),
    "state_underflow": frozenset({"SY403"}),
}
"""Which findings of the sampled checks are the same problem as what a suspicion calls by this name."""
ENOUGH_STEPS = PATIENCE
"""Steps needed to see that something never happens."""

Answer = tuple[Diagnosis, tuple[Finding, ...]]


def look_into(replayable: FollowedReplayable, findings: Sequence[Finding], *, depth: str = "full") -> Answer | None:
    """Diagnose what these findings say of a run in which nothing is non-finite; None where the diagnosis sees none of
    it.

    Gives the findings that are explained by it, too. Runs a few steps again and restores everything bit for bit.
    Syncs with the host.
    """
    codes = {found.code for found in findings}
    if detached_graph.RULE.code in codes:
        with replayable.examining():
            found = constant_term(replayable, _Moved(trained_by(replayable)))
            if found is not None:  # better with the names of those that get no gradient at all
                found = _cut_off(replayable, without_gradient(replayable)) or found
        if found is not None:
            return silent_diagnosis(found), (replace(found, step=replayable.facts.step),)
    if not any(codes & explained for explained in EXPLAINS.values()):
        return None
    with replayable.examining():
        suspicion = confirm(replayable, codes)
        cut = (
            _cut_off(replayable, suspicion.names)
            if suspicion is not None and suspicion.kind == "zero_gradient"
            else None
        )
    explained = EXPLAINS.get(suspicion.kind, frozenset()) if suspicion is not None else frozenset()
    told = tuple(found for found in findings if found.code in explained)
    if suspicion is None or not told:
        return None
    if suspicion.kind == "spike" and not _rising(replayable):
        depth = "origin"  # it has risen and stays: from here any change looks like a remedy
    if cut is not None:
        told = (*told, replace(cut, step=told[0].step))
    return diagnose(replayable, depth=depth, suspicion=replace(suspicion, step=replayable.facts.step)), told


class _Moved(ReplayChange):
    """These parameters are moved before the step, by about a tenth of their size."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def prepared(self, replayable: Replayable) -> None:
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in replayable.model.named_parameters():
                if name in self._names:
                    noise = torch.randn(parameter.shape, generator=random).to(parameter)
                    parameter.add_(noise * (0.1 * parameter.abs().mean() + 0.01))


def _cut_off(replayable: Replayable, names: Sequence[str]) -> Finding | None:
    """Whether the loss depends on parameters that get no gradient. Only inside an examination."""
    try:
        plain, again = (replay(replayable, until="forward").loss for _ in range(2))
        moved = replay(replayable, change=_Moved(names), until="forward").loss
    except CANNOT_RUN:
        return None
    finally:
        replayable.restore()
    return detached_graph.judge(names, plain, again, moved)


def _learning(replayable: FollowedReplayable) -> bool:
    """Whether the loss of the steps so far falls: then a few gains that stand still in half precision do no harm."""
    losses = [r.loss for r in replayable.facts.history if r.applied and math.isfinite(r.loss)]
    third = max(1, len(losses) // 3)
    return len(losses) >= ENOUGH_STEPS and sum(losses[-third:]) < 0.98 * sum(losses[:third])


def _rising(replayable: FollowedReplayable) -> bool:
    """Whether the loss of the last steps is higher than that of the steps before."""
    losses = [abs(r.loss) for r in replayable.facts.history if r.applied and math.isfinite(r.loss)][-2 * ENOUGH_STEPS :]
    half = len(losses) // 2
    return half > 0 and sum(losses[-half:]) > 1.2 * sum(losses[:half])


def _risen(replayable: FollowedReplayable) -> bool:
    """Whether the loss has left the range it began in, and not come back."""
    losses = [abs(r.loss) for r in replayable.facts.history if r.applied and math.isfinite(r.loss)]
    return len(losses) >= ENOUGH_STEPS and min(losses[1:]) > RISEN * losses[0] > 0


class _Replayed(NotAsked):
    """Answers about steps that are replayed one after another: what forward uses can be looked up."""

    def __init__(self, replayable: FollowedReplayable) -> None:
        self._replayable = replayable

    def parameters_read(self) -> frozenset[str]:
        return parameters_read(self._replayable)


def confirm(replayable: FollowedReplayable, codes: Collection[str]) -> Suspicion | None:
    """What the rules suspect of this step and those after it. Only inside an examination."""
    run = ObservedRun(_Replayed(replayable))

    def look(step: int, seen: ReplayObservation) -> Suspicion | None:
        run.add(complete(seen, replayable, step, run.last if run.steps else None))
        return run.suspect()

    suspicion = look(0, replay(replayable))
    ahead = 0
    while suspicion is None and (batches := replayable.following(ahead := ahead + 1)) is not None:

        def prepare(ahead: int = ahead) -> None:
            replayable.prepare_following(ahead)

        suspicion = look(ahead, replay(replayable, restore=False, batches=batches, prepare=prepare))
    if suspicion is None and set(codes) & EXPLAINS["unmoved"]:
        # Where the rest learns only a separate part is reported: a temperature, the weights of some losses.
        still = standing_apart(run) if _learning(replayable) else standing_still(run)
        suspicion = Suspicion(symptom="silent", step=0, kind="unmoved", names=still) if still else None
    if suspicion is None and set(codes) & EXPLAINS["state_underflow"] and lost_moments(replayable):
        suspicion = Suspicion(symptom="silent", step=0, kind="state_underflow", names=tuple(lost_moments(replayable)))
    told = suspicion is not None and set(codes) & EXPLAINS.get(suspicion.kind, frozenset())
    if not told and set(codes) & EXPLAINS["spike"] and (strides_too_long(run) or _risen(replayable)):
        suspicion = Suspicion(symptom="spike", step=0, kind="spike")
    return suspicion
