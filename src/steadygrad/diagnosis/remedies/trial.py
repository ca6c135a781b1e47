"""A remedy tried on the failing step itself: is it finite, how far did it move, does it hold for a few steps?

`verified` is set here and nowhere else, and only after the step and the steps that follow it have been run with the
change in place. Distances are measured on the healthy rows against the same step in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...detect.patterns.gradient_scaled_wrongly import SIZE_MISMATCH
from ...detect.patterns.loss_jumps_and_stays import LONG_STRIDE
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...records import Remedy, Trial
from ..interventions.backend.compiled import as_compiled
from ..interventions.batch_changes import MAX_SKIPS, Clip, DropRows, SkipBatch
from ..interventions.precision_changes import Precision
from ..isolation import device_memory as memory
from ..isolation.device_memory import bytes_of, copied_to_host, forget, is_out_of_memory, release_memory
from ..isolation.resource_limits import OutOfTime, fits_beside_a_step, fits_instead_of_a_step, in_a_line
from ..locate.bad_rows import num_rows
from ..locate.lost_gradient import lost_moments
from ..replay.replay_observation import ReplayObservation, absmax, trainable
from ..replay.replay_step import CANNOT_RUN, ReplayChange, replay
from ..replay.replayable import Replayable, StepFacts
from .remedy_context import Proposal, RemedyContext

FOLLOW_STEPS = 6
FOLLOW_LONGER = 12
"""Steps after a spike, or a skip: a rise that is only slowed down shows late, and so does a fault that comes again."""
SAME_BATCH = 3
"""Where no other batch is kept, a remedy is followed so many steps on the failing one, from where it leads."""
HOLDS = "holds"
NO_OTHER_BATCH = "no other batch is kept to follow it on"
LARGE_MODEL = 20_000_000
REWIND_STEPS = 8
REWIND_FAR = 64
"""To a copy of the state a trial goes back at most so many steps: all of them are run again."""
OUT_OF_PROPORTION = 100.0
"""So many times the loss of the healthy rows, or of the steps before, is no loss that a training can go on from."""
LEAST_LOSS = 0.01
"""A loss that small is as good as zero, and no measure of others."""
CALM = 3.0
"""A loss no larger than this many times the lowest before it has not risen."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Loss and gradients of the healthy rows in float64, and how many of the rows these are; None where not known."""

    loss: float
    gradients: Sequence[torch.Tensor | None]
    rows: int | None = None
    num_rows: int | None = None


def try_all(context: RemedyContext, proposals: list[Proposal]) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """Every proposal on its own; verified ones first, and among them those that change least.

    The codes in the second value were not tried any more: the time was used up.
    """
    reference = float64_reference(context)
    peak = untreated_peak(context)
    trials: list[Trial] = []
    untried: tuple[str, ...] = ()
    for number, proposal in enumerate(proposals):
        held = any(trial.verified and trial.remedy.slug == proposal.slug for trial in trials)
        if proposal.if_needed and held:
            continue
        try:
            trials.append(attempt(context, proposal, reference, peak))
        except OutOfTime:
            untried = tuple(dict.fromkeys(left.code for left in proposals[number:]))
            break
    return tuple(sorted(trials, key=_rank)), untried


_SAFETY = {"exact": 0, "close": 1, "behavioural": 2}


def _rank(trial: Trial) -> tuple[bool, int, int, float, float]:
    gap = trial.loss_gap if trial.loss_gap is not None and math.isfinite(trial.loss_gap) else 1.0
    turned = 1.0 - trial.gradient_cosine if trial.gradient_cosine is not None else 1.0
    return (not trial.verified, trial.order, _SAFETY.get(trial.remedy.safety, 3), round(turned, 4), gap)


def attempt(context: RemedyContext, proposal: Proposal, reference: Reference | None, peak: float = math.inf) -> Trial:
    """One trial. An error in the user's code under the change is a verdict, not a failure of the diagnosis."""
    remedy = Remedy(
        code=proposal.code,
        slug=proposal.slug,
        change=proposal.change,
        safety=proposal.safety,
        code_change=proposal.code_change,
        own_line=proposal.own_line and proposal.code_change is not None,
    )
    change: ReplayChange | None = None
    try:
        change = proposal.make()
        with as_compiled() if context.evidence.compiled else nullcontext():
            finite, steps, verdict = _run(context, proposal, change, peak, reference)
    except CANNOT_RUN as error:
        return Trial(remedy=remedy, finite=False, verdict=f"cannot be tried here: {_why_not(error)}"[:200])
    finally:
        if change is not None:
            change.undo(context.replayable)
    gap, cosine = (None, None)
    if finite and reference is not None and not context.evidence.compiled:  # distances are measured in eager
        gap, cosine = _distance(context, proposal, reference)
    return Trial(
        remedy=remedy,
        finite=finite,
        verified=finite and steps > 0,
        loss_gap=gap,
        gradient_cosine=cosine,
        steps_followed=steps,
        verdict=verdict,
        rows_compared=reference.rows if reference is not None and gap is not None else None,
        num_rows=reference.num_rows if reference is not None and gap is not None else None,
    )


def _why_not(error: BaseException) -> str:
    """Why a trial could not be run, in one line. Lets go of what the exception holds, so that the next one can run."""
    if not is_out_of_memory(error):
        return in_a_line(error)
    forget(error)
    release_memory()
    return "out of memory"


def untreated_peak(context: RemedyContext) -> float:
    """How high the loss climbs when nothing is done; inf where it does not stay finite."""
    if context.evidence.kind != "spike":
        return math.inf
    replayable, worst = context.replayable, abs(replay(context.replayable).loss)
    following = getattr(replayable, "following", None)
    for ahead in range(1, FOLLOW_STEPS + 1):
        batches = following(ahead) if following is not None else None
        if batches is None:
            break
        seen = replay(replayable, restore=False, batches=batches, prepare=_preparing(replayable, ahead))
        worst = max(worst, abs(seen.loss)) if math.isfinite(seen.loss) else math.inf
    return worst


def _run(
    context: RemedyContext, proposal: Proposal, change: ReplayChange, peak: float, reference: Reference | None
) -> tuple[bool, int, str]:
    replayable, start = context.replayable, 0
    step, earlier_state = replayable.facts.step, replayable.facts.earlier
    if proposal.from_start or (proposal.rewind and earlier_state is not None):
        backs = (step,) if proposal.from_start else _starts(replayable.facts)
        for back in backs:
            earlier = earlier_state(back) if earlier_state is not None else None
            if earlier is not None:
                replayable, start = earlier, back
                break
        if proposal.from_start and step and not start:
            return False, 0, "cannot be tried here: the first steps are no longer kept"
    judge = _TrialJudge(context, change, peak, back=start)
    skips, following = isinstance(change, SkipBatch), getattr(replayable, "following", None)
    seen = replay(replayable, change=change, stop_if_bad=not skips)
    if not judge.accepts(seen, at_failure=start == 0):
        return False, 0, judge.why
    size = judge.out_of_proportion(seen, reference) if not start and proposal.slug in ("eps", "clamp") else ""
    if size and proposal.in_proportion:
        return True, 0, f"finite, {size}"
    steps, others = 0, False
    longer = context.evidence.kind == "spike" or skips
    # A step that does not feel its update says nothing of a remedy later on; but a batch left out makes none.
    felt = skips or getattr(replayable, "feels_update", True)
    follow = (FOLLOW_LONGER if longer else FOLLOW_STEPS) if felt else 0
    for ahead in range(1, start + follow + 1):
        batches = following(ahead) if following is not None else None
        if batches is None and (others or ahead > SAME_BATCH or skips):
            break
        others = batches is not None
        seen = replay(
            replayable,
            restore=False,
            batches=batches,  # none is kept: the failing one again, from the weights that the remedy led to
            prepare=_preparing(replayable, ahead) if batches is not None else None,
            change=change if proposal.lasting or (change.alters_rows and not others) else None,
            stop_if_bad=not skips,
        )
        steps += 1
        if not judge.accepts(seen, at_failure=ahead == start):
            return False, steps, f"{judge.why}, {ahead} steps later"
    held = judge.conclude(seen, steps)
    if held and not steps:
        return True, 0, f"finite in this step; {NO_OTHER_BATCH}"
    holds = f"{HOLDS}, {size}" if size else HOLDS
    return held, steps, judge.why or (holds if others else f"{holds} in this step run again; {NO_OTHER_BATCH}")


def _starts(facts: StepFacts) -> list[int]:
    """How many steps to go back, the best start first: to the newest copy from before the loss rose, or the oldest."""
    losses = {record.step: abs(record.loss) for record in facts.history if math.isfinite(record.loss)}
    kept = [at for at in facts.kept_steps if 0 < facts.step - at <= REWIND_FAR and at in losses]
    calm = [at for at in kept if losses[at] <= CALM * min(loss for step, loss in losses.items() if step <= at)]
    return [facts.step - at for at in (calm[-1:] or kept[:1])] + list(range(min(REWIND_STEPS, facts.step), 0, -1))


def _preparing(replayable: Replayable, ahead: int) -> Callable[[], None]:
    prepare = replayable.prepare_following  # type: ignore[attr-defined]
    return lambda: prepare(ahead)


class _TrialJudge:
    """What counts as cured depends on what was wrong."""

    def __init__(self, context: RemedyContext, change: ReplayChange, peak: float, back: int = 0) -> None:
        """`back`: the trial starts so many steps before the failing one, and must stay as calm as it was there."""
        self.context, self.change, self.why = context, change, ""
        self.marks: list[tuple[float, ...]] = []
        self.num_failed = 0
        """Steps whose loss or gradients were not finite, the failing one included."""
        until = context.replayable.facts.step - back + bool(back)
        before = [abs(r.loss) for r in context.replayable.facts.history if r.step < until and math.isfinite(r.loss)]
        losses = before if back and before else [abs(loss) for loss in context.evidence.losses if math.isfinite(loss)]
        # Steps too long for the landscape: from a calm start the loss must stay calm, not only finite.
        self.back_to_calm = bool(back and before) and context.cause == "lr_divergence"
        # The failing step's own loss is from before its update: it belongs to the calm that a remedy must keep.
        # Unless it had risen already.
        now = [abs(r.loss) for r in context.replayable.facts.history if r.step == context.replayable.facts.step]
        now = [] if context.evidence.risen else [*now, *_losses_of_others(context)]
        self.ceiling = max([*losses, *(loss for loss in now if math.isfinite(loss))], default=0.0)
        # Calm lies well below the peak that comes without a remedy, and never above three times what was usual.
        self.calm = min(3 * self.ceiling, math.sqrt(self.ceiling * peak)) if math.isfinite(peak) else 3 * self.ceiling

    def accepts(self, seen: ReplayObservation, *, at_failure: bool) -> bool:
        self.num_failed += not seen.loss_finite or bool(seen.bad_gradients or seen.bad_entering)
        if self.context.evidence.kind == "written_unmoved":
            weights = dict(self.context.replayable.model.named_parameters())
            written = [weights[name].detach().to(torch.float64) for name in self.context.evidence.names]
            self.marks.append(tuple(float(weight.sum()) for weight in written))
        if isinstance(self.change, SkipBatch):
            return self._accepts_skip(seen, at_failure)
        if not seen.finite:
            self.why = _what_is_bad(seen)
            return False
        if self._still_out_of_range():
            self.why = "the weight is still far out of range"
            return False
        if self.context.evidence.kind == "spike" or self.back_to_calm:
            return self._calm(seen)
        return not (at_failure and self.context.silent) or self._cured(seen)

    def out_of_proportion(self, seen: ReplayObservation, reference: Reference | None) -> str:
        """Why a finite loss is no cure all the same: it is orders of magnitude from what this training has."""
        usual = max(self.ceiling, abs(reference.loss) if reference is not None else 0.0)
        if self.context.silent or isinstance(self.change, SkipBatch) or not usual:
            return ""
        if abs(seen.loss) <= OUT_OF_PROPORTION * max(usual, LEAST_LOSS):
            return ""
        return f"but the loss is {seen.loss:.3g} where it is about {usual:.3g} otherwise"

    def _accepts_skip(self, seen: ReplayObservation, at_failure: bool) -> bool:
        assert isinstance(self.change, SkipBatch)
        if self.change.num_skipped > MAX_SKIPS:
            self.why = f"skipped more than {MAX_SKIPS} steps"
            return False
        if seen.bad_after:
            self.why = f"{seen.bad_after[0][0]} {seen.bad_after[0][1]} is bad all the same"
            return False
        if self._still_out_of_range():
            self.why = "the weight is still far out of range"
            return False
        if self.context.evidence.kind == "spike":
            return self._calm(seen)
        return not (at_failure and self.context.silent) or self._cured(seen)

    def _calm(self, seen: ReplayObservation) -> bool:
        too_long = seen.update_norm > LONG_STRIDE * seen.weight_norm > 0
        if self.context.evidence.phase == "optimizer" and isinstance(self.change, Clip) and too_long:
            # A clipped gradient at the same rate: bounded, and as long as the weights all the same.
            self.why = f"one update still moves the weights by {seen.update_norm / seen.weight_norm:.0%}"
            return False
        if not math.isfinite(seen.loss) or (self.ceiling and abs(seen.loss) > self.calm):
            self.why = f"the loss still rises to {seen.loss:.3g}"
            return False
        return True

    def _still_out_of_range(self) -> bool:
        """Whether a weight that someone changed is as far out as it was: a loss that bears it is no cure."""
        evidence = self.context.evidence
        changed = [c for c in evidence.changes if c.kind == "parameter" and c.out_of_range]
        if evidence.phase != "state" or not (changed or evidence.huge_state):
            return False
        weights = dict(self.context.replayable.model.named_parameters())
        if (huge := evidence.huge_state) is not None and huge[0] in weights and not changed:
            return not absmax(weights[huge[0]]) <= 1e-3 * huge[1]
        return any(not absmax(weights[c.name]) <= 100 * max(c.absmax_before, 1e-8) for c in changed)

    def _cured(self, seen: ReplayObservation) -> bool:
        names = self.context.evidence.names
        match self.context.evidence.kind:
            case "zero_gradient":
                cured = all(
                    seen.gradients[n].present and seen.gradients[n].norm > 0
                    for n in names
                    if not _starts_at_zero(n, seen)
                )
                self.why = "" if cured else "parameters still receive no gradient"
            case "unmoved" | "outside_optimizer":
                adopted = getattr(self.change, "moved", ())
                moved = sum(1 for name in names if seen.updates.get(name, 0.0) > 0 or name in adopted)
                cured = 2 * moved > len(names)
                self.why = "" if cured else "weights still do not move"
            case "mis_sized":
                ratio = _size_ratio(self.context.replayable, seen)
                cured = ratio is not None and 1 / SIZE_MISMATCH < ratio < SIZE_MISMATCH
                self.why = "" if cured else "gradients still enter at the wrong size"
            case "state_underflow":
                cured = not lost_moments(self.context.replayable)
                self.why = "" if cured else "second moments are still zero beside living first moments"
            case "neutralised":
                zeroed = self.context.suspicion is not None and self.context.suspicion.detail == "zeroed"
                cured = all(size == 0 for name, size in seen.updates.items() if not zeroed or name in names)
                self.why = "" if cured else "the weights still move"
            case _:
                cured = True
        return cured

    def _skipping_helps(self, steps_followed: int) -> bool:
        """Leaving a batch out helps only if the batches around it are fine: those that follow, and the one before."""
        assert isinstance(self.change, SkipBatch)
        step = self.context.replayable.facts.step
        before = [record for record in self.context.replayable.facts.history if record.step < step]
        if not self.change.num_skipped:
            self.why = "there was nothing to skip"
        elif not steps_followed:
            self.why = f"not tried: {NO_OTHER_BATCH}"
        elif self.num_failed > 1:
            self.why = f"{self.num_failed - 1} of {steps_followed} following batches fail as well"
        elif before and before[-1].step == step - 1 and not before[-1].applied:
            self.why = "the update of the batch before it was refused as well"
        return not self.why

    def conclude(self, seen: ReplayObservation, steps_followed: int) -> bool:
        if isinstance(self.change, SkipBatch) and not self._skipping_helps(steps_followed):
            return False
        if self.context.evidence.kind == "written_unmoved":
            moved = len(self.marks) > 1 and all(a != b for a, b in zip(self.marks[0], self.marks[-1], strict=True))
            self.why = "" if moved else "what is written still never changes"
            return moved
        return True


def _losses_of_others(context: RemedyContext) -> list[float]:
    """What batches from around give with the weights from before a spike: some are harder than others."""
    following = getattr(context.replayable, "following", None)
    if context.evidence.kind != "spike" or context.evidence.phase != "optimizer" or following is None:
        return []
    found = []
    for ahead in (1, 2, 3):
        if (batches := following(ahead)) is None:
            break
        try:
            found.append(abs(replay(context.replayable, batches=batches, until="forward").loss))
        except CANNOT_RUN:
            break
    return found


def _starts_at_zero(name: str, seen: ReplayObservation) -> bool:
    """A low-rank factor whose partner starts at zero has no gradient yet in the first step, and is not the cause."""
    gradient = seen.gradients.get(name)
    return gradient is not None and gradient.present and any(token in name for token in ("lora_A", ".A."))


def _size_ratio(replayable: Replayable, seen: ReplayObservation) -> float | None:
    true = seen.grad_norm / (seen.loss_scale or 1.0)
    limit = replayable.facts.max_grad_norm
    expected = min(true, limit) if limit else true
    actual = math.hypot(*seen.entering.values())
    return actual / expected if seen.entering and expected > 0 else None


def _what_is_bad(seen: ReplayObservation) -> str:
    if not seen.loss_finite:
        return "the loss is still not finite"
    if seen.bad_gradients or seen.bad_entering:
        hidden = "" if seen.bad_entering else " before it is changed, so the cause is still there"
        return f"the gradient of {(seen.bad_gradients or seen.bad_entering)[0]} is still not finite{hidden}"
    return f"{seen.bad_after[0][0]} {seen.bad_after[0][1]} is still not finite"


def float64_reference(context: RemedyContext) -> Reference | None:
    """The healthy rows of the step in float64, if the user's code can run so and is finite there, and memory allows."""
    replayable = context.replayable
    if not fits_instead_of_a_step(_float64_bytes(replayable), replayable.model.parameters()):
        return None
    change = Precision(torch.float64, moments=False)
    try:
        seen = _measure(context, change)
        gradients = [parameter.grad for _, parameter in trainable(replayable)]
    except CANNOT_RUN as error:
        _why_not(error)
        return None
    finally:
        change.undo(replayable)
    if not seen.loss_finite or seen.bad_gradients:
        return None
    kept = [grad for grad in gradients if grad is not None]
    on_device = fits_beside_a_step(sum(map(bytes_of, kept)), kept)
    kept_on = [copied_to_host(g) if g is not None and not on_device else g for g in gradients]
    return Reference(seen.loss, kept_on, *_compared(context))


def _compared(context: RemedyContext) -> tuple[int | None, int | None]:
    """How many rows the distances are taken over, and how many there are."""
    select = context.replayable.facts.select_rows
    if select is None or context.rows.why:
        return None, None
    kept = [_healthy_rows(context, batch) for batch in context.replayable.batches]
    compared, whole = sum(len(rows) for rows, _ in kept), sum(size for _, size in kept)
    guilty = () if context.rows.packed else context.rows.rows or ()
    large = compared < whole - len(guilty) * len(kept)  # of a large model only some of the healthy rows are run
    return (None, None) if large and 2 * len(guilty) * len(kept) <= whole else (compared, whole)


def _float64_bytes(replayable: Replayable) -> int:
    """What the step takes about in float64: weights and gradients as wide as that, and what it keeps for backward."""
    parameters = list(replayable.model.parameters())
    narrow = replayable.facts.autocast is not None or any(p.dtype.itemsize < 4 for p in parameters)
    taken = max((memory.taken_by_a_step(device) for device in {p.device for p in parameters}), default=0)
    numel = sum(p.numel() for p in parameters)
    return 16 * numel + taken * (4 if narrow else 2) // (8 if numel > LARGE_MODEL else 1)


def _measure(context: RemedyContext, change: ReplayChange) -> ReplayObservation:
    replayable = context.replayable
    batches = [_few_healthy(context, batch) for batch in replayable.batches]
    altered = any(mine is not own for mine, own in zip(batches, replayable.batches, strict=True))
    return replay(replayable, change=change, until="backward", batches=batches, altered=altered)


def _few_healthy(context: RemedyContext, batch: Any) -> Any:
    """The healthy rows; only some of them for a model of some size, for float64 takes several times the memory."""
    select = context.replayable.facts.select_rows
    if select is None or context.rows.why:
        return batch  # where rows cannot be told apart, none is left out
    rows, size = _healthy_rows(context, batch)
    return select(batch, rows) if rows and len(rows) < size else batch


def _healthy_rows(context: RemedyContext, batch: Any) -> tuple[list[int], int]:
    """The rows that are compared, and how many the batch has."""
    size = num_rows(batch, context.replayable.facts.select_rows)
    guilty = () if context.rows.packed else context.rows.rows or ()
    rows = [row for row in range(size) if row not in guilty]
    if sum(p.numel() for p in context.replayable.model.parameters()) > LARGE_MODEL:
        rows = rows[: max(2, len(rows) // 8)]
    return rows, size


def _distance(context: RemedyContext, proposal: Proposal, reference: Reference) -> tuple[float | None, float | None]:
    """How far loss and gradient of the healthy rows are from float64 with this change in place."""
    change = proposal.make()
    try:
        seen = _measure(context, ReplayChange() if isinstance(change, DropRows) else change)
        if not math.isfinite(seen.loss):
            return None, None
        cosine = _cosine([p.grad for _, p in trainable(context.replayable)], reference.gradients)
    except CANNOT_RUN:
        return None, None
    finally:
        change.undo(context.replayable)
    return abs(seen.loss - reference.loss) / max(abs(reference.loss), 1e-12), cosine


def _cosine(ours: Sequence[torch.Tensor | None], theirs: Sequence[torch.Tensor | None]) -> float | None:
    """Of the angle between two gradients, in float64, one parameter at a time; None where there is none."""
    product, length, other = 0.0, 0.0, 0.0
    for one, two in zip(ours, theirs, strict=True):
        mine, yours = _dense(one), _dense(two)
        product += float(mine @ yours.to(mine.device)) if mine is not None and yours is not None else 0.0
        length += float(mine @ mine) if mine is not None else 0.0
        other += float(yours @ yours) if yours is not None else 0.0
    norms = math.sqrt(length * other)
    return product / norms if norms > 0 and math.isfinite(norms) else None


def _dense(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    whole = gradient.coalesce().to_dense() if gradient.is_sparse else gradient
    return whole.detach().to(torch.float64).reshape(-1)
