"""A watch over steps that are run one by one: when does what was seen deserve the clinic?

Non-finite losses, gradients, weights and states speak for themselves. The silent troubles need several steps: a
parameter that never receives a gradient, a weight that never moves, gradients that reach the optimizer with another
size than the loss gave them, a loss that jumps and stays up. Nearly all of it reads `StepSeen` alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..detect.strays import stray_parameters
from .batches import walk_batch
from .blame import ODD
from .patient import Patient
from .seen import StepSeen, absmax, parameter_names
from .sightings import grown_gradients, owner, parts_of_their_own, reached, was_zeroed, written_between

PATIENCE = 3
"""Steps a silent pattern must hold before it is called one: a LoRA factor has no gradient in its first step."""
STOPPED = 6
"""Steps at the end of a run without any gradient, after some with one, before that is called a fault."""
JUMP = 5.0
"""A loss this many times the largest before it, and still high one step on, is a spike."""
STEPS_BEFORE_SPIKE = 4
"""Losses needed before one of them can stand out."""
SIZE_MISMATCH = 4.0
"""Gradients entering the optimizer this many times too small or too large were scaled wrongly."""
LONG_STRIDE = 0.2
"""An update longer than this share of the weights' own norm is no small step."""
NOISE = {"float16": 1e-4, "bfloat16": 1e-3}
"""Gradients this much smaller than their neighbours' are rounding: where the true one is zero (a bias in front of a
normalisation) there is nothing to learn. Elsewhere 1e-5."""
OUTLIER = 1e3
"""A batch entry this many times as large as any before it is an outlier, whatever the old batches say."""
THROWN = 1e6
"""A weight this many times as large as the last update can have left it was changed by somebody else."""
RISEN = 2.0
"""An earlier batch whose loss has grown by this much on the weights of now has been harmed."""
SCALER_PATIENCE = 12
"""Overflows in a row a dynamic scaler may need to find its scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What was seen and since when. `kind` is finer than the symptom: zero_gradient, unmoved, mis_sized ..."""

    symptom: str
    step: int
    kind: str
    names: tuple[str, ...] = ()
    detail: str = ""


@dataclass(slots=True)
class _Row:
    step: int
    seen: StepSeen
    rate: float
    loss_scale: float | None
    max_grad_norm: float | None
    rated: frozenset[str] = frozenset()
    sizes: dict[str, int] = field(default_factory=dict)
    """How many numbers each entry of the batch has."""
    peaks: dict[str, float] = field(default_factory=dict)
    """The largest magnitude in each entry of the batch."""
    written: frozenset[str] = frozenset()
    """Parameters of which nearly every entry is another one than the step before had left there."""

    def allowed_growth_since(self, before: _Row) -> float:
        """How much higher a loss may be only because the batch is larger: a sum grows with its terms, and a sum over
        pairs with their square. One where the batch is as it was."""
        both = [key for key in self.sizes if before.sizes.get(key)]
        growth = max((self.sizes[key] / before.sizes[key] for key in both), default=1.0)
        return growth**2 if growth >= 2 else max(growth, 1.0)


@dataclass(slots=True)
class Vigil:
    """`trusts(patient)` says whether a gradient overflow is the dynamic scaler's ordinary business; `reads(patient)`
    names the parameters a forward pass really uses, so that one nobody calls is not missed by anybody.
    `loss_now(patient, step)` is the loss of an earlier step's batch on the weights of now; `hides(patient)` says
    whether a NaN came up in this step that the loss does not show. Both are asked only in doubt."""

    trusts: Callable[[Any], bool]
    reads: Callable[[Any], frozenset[str]]
    loss_now: Callable[[Any, int], float | None] = lambda _patient, _step: None
    hides: Callable[[Any], bool] = lambda _patient: False
    patient: Any = None
    used: frozenset[str] | None = None
    rows: list[_Row] = field(default_factory=list)
    overflows: int = 0
    kept: dict[str, tuple[int, int | None, int]] = field(default_factory=dict)
    held: Suspicion | None = None

    def look(self, step: int, seen: StepSeen, patient: Patient) -> Suspicion | None:
        """Judge one more step; a suspicion at once, or None for now."""
        rate = max((float(g["lr"]) for o in patient.optimizers for g in o.param_groups), default=0.0)
        facts = patient.facts
        names = parameter_names(patient)
        groups = [group for optimizer in patient.optimizers for group in optimizer.param_groups if group["lr"] > 0]
        rated = frozenset(names.get(id(p), "?") for group in groups for p in group["params"])
        entries = [(k, v) for b in patient.batches for k, v in walk_batch(b) if isinstance(v, torch.Tensor)]
        sizes, peaks = {k: v.numel() for k, v in entries}, {k: absmax(v) for k, v in entries}
        self.patient = patient
        written = written_between(self.rows[-1].seen, seen) if self.rows else frozenset()
        self.rows.append(_Row(step, seen, rate, seen.loss_scale, facts.max_grad_norm, rated, sizes, peaks, written))
        return (
            self._was_held(seen)
            or self._neutralised(step, seen)
            or self._hidden(step, seen)
            or self._zeroed()
            or self._non_finite(step, seen, patient)
            or self._thrown(step, seen)
            or self._outside_optimizer(patient)
            or self._no_gradient(patient)
            or self._mis_sized()
            or self._unmoved()
            or self._never_follows(step, seen)
            or self._grew(self._spike() or self._rising() or self._diverged())
        )

    def conclude(self) -> Suspicion | None:
        """At the end of the steps: a jump in the very last ones that had no time to be confirmed."""
        return self.held or self._grew(self._spike(ended=True)) or self._unmoved(ended=True) or self._stopped()

    def _non_finite(self, step: int, seen: StepSeen, patient: Patient) -> Suspicion | None:
        bad_terms = tuple(name for name, value in seen.terms.items() if not math.isfinite(value))
        if bad_terms:
            symptom = "nan_loss" if any(math.isnan(seen.terms[name]) for name in bad_terms) else "inf_loss"
            return Suspicion(symptom=symptom, step=step, kind="non_finite", names=bad_terms)
        overflow = bool(seen.bad_gradients)
        self.overflows = self.overflows + 1 if overflow else 0
        if overflow:
            # Counted in micro-batches, while the scale comes down once in a window.
            waiting = patient.facts.dynamic_scale and self.overflows <= SCALER_PATIENCE * patient.facts.accumulation
            if not (waiting and not seen.bad_after and self.trusts(patient)):
                return Suspicion(symptom="nan_grad", step=step, kind="non_finite", names=tuple(seen.bad_gradients))
            return None
        if seen.bad_entering:
            return Suspicion(symptom="nan_grad", step=step, kind="non_finite", names=tuple(seen.bad_entering))
        grown = grown_gradients(seen)
        if grown:
            return Suspicion(symptom="spike", step=step, kind="tampered_gradient", names=grown)
        for kind, symptom in (("parameter", "nan_param"), ("optimizer", "nan_state")):
            names = tuple(name for k, name in seen.bad_after if k == kind)
            if names:
                return Suspicion(symptom=symptom, step=step, kind="non_finite", names=names)
        return self._bad_buffer(step, seen)

    def _was_held(self, seen: StepSeen) -> Suspicion | None:
        """A buffer that the last step made bad, and that does harm in this one."""
        harmed = not seen.loss_finite or seen.bad_gradients or seen.bad_entering
        read = self.held is not None and set(self.held.names) & {name for _, name in seen.bad_before}
        return self.held if harmed and read else None

    def _bad_buffer(self, step: int, seen: StepSeen) -> Suspicion | None:
        """A buffer that is bad while all else is sound.

        One that was so from the start is a value that nobody has measured yet: it is told when somebody reads it. One
        that a step has just made bad may be a figure for a log, overwritten by the next: it is told if it stays so.
        """
        from_start = {key for key in self.rows[0].seen.bad_before if key[0] == "buffer"}
        bad = [key for key in seen.bad_after if key not in from_start]
        held, self.held = self.held, None
        if held is not None and set(held.names) & {name for _, name in bad}:
            return held
        names = tuple(name for _, name in bad)
        found = Suspicion(symptom="nan_state", step=step, kind="non_finite", names=names) if bad else None
        if found is not None and not set(bad) & set(seen.bad_before):
            self.held, found = found, None
        return found

    def _thrown(self, step: int, seen: StepSeen) -> Suspicion | None:
        """A weight that the last update left small and that is astronomic now: nobody computed that.

        The loss need not show it: a bounded function swallows it.
        """
        before = self.rows[-2].seen if len(self.rows) > 1 else None
        if before is None or not before.stepped:
            return None
        names = tuple(
            name
            for name, size in seen.largest.items()
            if name in before.largest and size > THROWN * max(before.largest[name] + before.updates.get(name, 0.0), 1.0)
        )
        return Suspicion(symptom="spike", step=step, kind="spike", names=names) if names else None

    def _neutralised(self, step: int, seen: StepSeen) -> Suspicion | None:
        """The gradient was bad, somebody made it harmless, and the weights moved all the same."""
        if not (seen.bad_gradients and seen.stepped and not seen.bad_after):
            return None
        entering = [seen.entering.get(name, 0.0) for name in seen.bad_gradients]
        moved = any(seen.updates.get(name, 0.0) > 0 for name in seen.bad_gradients)
        if all(math.isfinite(value) for value in entering) and moved:
            return Suspicion(symptom="silent", step=step, kind="neutralised", names=tuple(seen.bad_gradients))
        return None

    def _hidden(self, step: int, seen: StepSeen) -> Suspicion | None:
        """A NaN came up, the loop put a loss without any gradient in its place, and the weights moved all the same."""
        learned = any(row.seen.grad_norm > 0 for row in self.rows[:-1])
        if not (seen.stepped and seen.entering and seen.backward_ran and learned) or seen.update_norm <= 0:
            return None
        if seen.grad_norm == 0 and seen.loss_finite and self.hides(self.patient):
            return Suspicion(symptom="silent", step=step, kind="neutralised", names=tuple(seen.entering))
        return None

    def _zeroed(self) -> Suspicion | None:
        """A part that had learned gets its gradients zeroed by hand, as if that froze it, and its weights move on."""
        rows = self._recent(2)
        if not rows or not all(row.seen.stepped for row in rows):
            return None
        names = [n for n in rows[-1].seen.entering if all(was_zeroed(row.seen, n) for row in rows)]
        learned = [n for n in names if any(row.seen.entering.get(n, 0.0) > 0 for row in self.rows[:-2])]
        if not learned:
            return None
        first = next(row.step for row in reversed(self.rows) if row.seen.entering.get(learned[0], 0.0) > 0) + 1
        return Suspicion(symptom="silent", step=first, kind="neutralised", names=tuple(learned), detail="zeroed")

    def _grew(self, suspicion: Suspicion | None) -> Suspicion | None:
        """A loss that rose because the batches did is no trouble: batches from before are asked again.

        Weights that ran away are bad for every batch.
        """
        if suspicion is None or self._outlier():
            return suspicion
        if any(row.step == suspicion.step and self._foreign(at) for at, row in enumerate(self.rows)):
            return suspicion
        if self._part_was_redrawn(suspicion.step):
            return None
        sound = [row for row in self.rows if math.isfinite(row.seen.loss)]
        before = [row for row in sound if row.step < suspicion.step][-PATIENCE:] or sound[:-1][:1]
        told = [(abs(row.seen.loss), self.loss_now(self.patient, row.step)) for row in before]
        known = [(then, now) for then, now in told if now is not None]
        if not known:
            return suspicion
        unharmed = sum(math.isfinite(now) and abs(now) <= RISEN * then for then, now in known)
        return None if 2 * unharmed > len(known) else suspicion

    def _part_was_redrawn(self, step: int) -> bool:
        """Whether a part of the model was written anew just before: a layer reset on purpose starts from a high loss.

        All of it at once is another matter (a checkpoint that does not belong here), and so is a value out of range.
        """
        row = next((row for row in self.rows if row.step == step), None)
        before = next((r for r in self.rows if r.step == step - 1), None)
        if row is None or before is None or not row.written or 2 * len(row.written) > len(row.seen.samples):
            return False
        return all(row.seen.largest[n] <= 100 * max(before.seen.largest[n], 0.1) for n in row.written)

    def _outlier(self) -> bool:
        """Whether one of the last batches holds a number far beyond all that was seen in that place before."""
        recent, before = self.rows[-2:], self.rows[:-2]
        peaks = {key: max(row.peaks.get(key, 0.0) for row in before) for key in recent[-1].peaks} if before else {}
        return any(
            row.peaks.get(key, 0.0) > OUTLIER * peak for row in recent for key, peak in peaks.items() if peak > 0
        )

    def _recent(self, count: int = PATIENCE) -> list[_Row]:
        return self.rows[-count:] if len(self.rows) >= count else []

    def _outside_optimizer(self, patient: Patient) -> Suspicion | None:
        rows = self._recent()
        if not rows or not patient.optimizers:
            return None
        held = {id(p) for o in patient.optimizers for g in o.param_groups for p in g["params"]}
        outside = {name for name, p in patient.model.named_parameters() if p.requires_grad and id(p) not in held}
        starved = [n for n in sorted(outside) if all(self._norm(row, n) > 0 for row in rows)]
        # One that moves between the steps is trained by somebody else: a second optimizer, an average.
        starved = [n for n in starved if not any(n in row.written for row in self.rows)]
        # What the model itself does not know gathers gradient from step to step, because nobody clears it.
        strays = [(n, p) for n, p in stray_parameters(patient.model) if id(p) not in held and p.grad is not None]
        starved += [name for name, p in strays if p.grad is not None and bool((p.grad != 0).any())]
        if starved:
            return Suspicion(symptom="silent", step=rows[0].step, kind="outside_optimizer", names=tuple(starved))
        return None

    def _no_gradient(self, patient: Patient) -> Suspicion | None:
        """Held by an optimizer, and no step so far brought it any gradient, though others learn."""
        # A loss of exactly zero (a satisfied margin) asks for no gradient.
        rows = [row for row in self.rows if row.seen.backward_ran and row.seen.loss != 0]
        if len(self.rows) < PATIENCE or not any(row.seen.loss != 0 for row in self.rows):
            return None
        held = {id(p) for o in patient.optimizers for g in o.param_groups for p in g["params"]}
        names = [name for name, p in patient.model.named_parameters() if p.requires_grad and id(p) in held]
        starved = [name for name in names if all(self._norm(row, name) == 0.0 for row in rows)]
        # A bias alone may cancel for good reasons (a difference of two outputs, a softmax over keys): a module
        # that learns nothing at all is another matter.
        learning = {owner(name) for name in names if name not in starved}
        starved = [name for name in starved if owner(name) not in learning]
        if not starved:
            return None
        if self.used is None:
            self.used = self.reads(patient)
        starved = [name for name in starved if name in self.used]
        if starved:
            return Suspicion(symptom="silent", step=self.rows[0].step, kind="zero_gradient", names=tuple(starved))
        return None

    def _stopped(self) -> Suspicion | None:
        """Had a gradient, and has had none for so long that it is no turn of somebody else's (a critic's, a task's)."""
        silent = self.rows[-STOPPED:]
        if len(self.rows) <= STOPPED or self.patient is None or not all(row.seen.backward_ran for row in silent):
            return None
        held = {id(p) for o in self.patient.optimizers for g in o.param_groups for p in g["params"]}
        names = [n for n, p in self.patient.model.named_parameters() if p.requires_grad and id(p) in held]
        starved = [n for n in names if all(self._norm(row, n) == 0.0 for row in silent)]
        learning = {owner(name) for name in names if name not in starved}
        starved = [n for n in starved if owner(n) not in learning and any(self._norm(row, n) > 0 for row in self.rows)]
        if not starved or all(row.seen.loss == 0 for row in silent):
            return None
        used = self.reads(self.patient)
        starved = [name for name in starved if name in used]
        if not starved:
            return None
        last = max(at for at, row in enumerate(self.rows) for name in starved if self._norm(row, name) > 0)
        step = self.rows[last + 1].step
        return Suspicion(symptom="silent", step=step, kind="zero_gradient", names=tuple(starved))

    @staticmethod
    def _norm(row: _Row, name: str) -> float:
        gradient = row.seen.gradients.get(name)
        if gradient is None or not gradient.present:
            return 0.0
        return gradient.norm if math.isfinite(gradient.norm) else math.inf

    def _mis_sized(self) -> Suspicion | None:
        """Compare the gradient the loss gave (scale removed, then clipped) with the one the optimizer received."""
        rows = [row for row in self.rows if row.seen.stepped and row.seen.entering][-2:]
        if len(rows) < 2:
            return None
        ratios = []
        for row in rows:
            true = row.seen.grad_norm / (row.loss_scale or 1.0)
            expected = min(true, row.max_grad_norm) if row.max_grad_norm else true
            actual = math.hypot(*row.seen.entering.values())
            if not (math.isfinite(true) and math.isfinite(actual)) or expected <= 0:
                return None
            ratios.append(actual / expected)
        if all(ratio > SIZE_MISMATCH for ratio in ratios) or all(ratio < 1 / SIZE_MISMATCH for ratio in ratios):
            return Suspicion(
                symptom="silent", step=rows[0].step, kind="mis_sized", detail=f"{ratios[0]:.3g} times the expected size"
            )
        return None

    def _unmoved(self, *, ended: bool = False) -> Suspicion | None:
        """Gradients arrive, steps are taken, and a whole tensor never changes a bit.

        Where only a few tensors of a half-precision model stand still (gains near one) and the loss falls, that is
        known and lived with; it is told only at the end and only if nothing was learned. A few tensors in full
        precision are told of at the end: a warm-up begins with steps that a gain of one cannot take.
        """
        still = self.standing_still()
        if not still:
            return None
        seen = self._stepped()[0].seen
        low = all(seen.dtypes.get(name) in ("float16", "bfloat16") for name in still)
        most = 2 * len(still) >= len(reached(seen))
        if not most and not low:
            still = parts_of_their_own(still, seen)  # a bias may have no slope but rounding: in front of a norm, say
        if still and (most or (ended and not (low and self._improved()))):
            return Suspicion(symptom="silent", step=self._stepped()[0].step, kind="unmoved", names=still)
        return None

    def standing_apart(self) -> tuple[str, ...]:
        """Of the tensors that stand still, those in whose module nothing moves, and that are no gains near one."""
        still = self.standing_still()
        return parts_of_their_own(still, self._stepped()[0].seen) if still else ()

    def _stepped(self) -> list[_Row]:
        return [row for row in self.rows if row.seen.stepped and row.rate > 0]

    def standing_still(self) -> tuple[str, ...]:
        """Tensors that a gradient worth the name reached in every step, and that never changed a bit."""
        rows = self._stepped()
        if len(rows) < PATIENCE or rows[-1].rate > 1.01 * rows[-PATIENCE].rate:
            return ()  # too early to tell, or the rate still grows
        moving = set.intersection(*(set(row.rated) for row in rows))
        held = reached(rows[0].seen)
        still = tuple(
            name
            for name in held
            if name in moving
            and all(row.seen.updates.get(name, 1.0) == 0.0 and row.seen.entering.get(name, 0.0) > 0 for row in rows)
        )
        largest = max((row.seen.entering.get(name, 0.0) for row in rows for name in held), default=0.0)
        first = rows[0].seen
        return tuple(n for n in still if first.entering[n] > NOISE.get(first.dtypes.get(n, ""), 1e-5) * largest)

    def _never_follows(self, step: int, seen: StepSeen) -> Suspicion | None:
        """Half-precision weights that no optimizer owns (an average of the others) are written and never change.

        Values are read only of tensors that were written since the last step.
        """
        frozen = [(n, p) for n, p in self.patient.model.named_parameters() if not p.requires_grad and p.numel()]
        for name, weight in frozen:
            if weight.dtype not in (torch.float16, torch.bfloat16):
                continue
            version, bits, since = self.kept.get(name, (-1, None, step + 1))
            if weight._version != version:
                now = int(weight.detach().contiguous().view(torch.int16).to(torch.int64).sum())
                same = bits is None or now == bits
                self.kept[name] = (weight._version, now, since if same else len(self.rows) + PATIENCE**9)
            elif bits is not None:
                self.kept[name] = (version, bits, step + 1)  # not written this time: nothing is being followed
        still = tuple(name for name, (_, _, since) in self.kept.items() if step - since + 1 >= PATIENCE)
        if still and seen.update_norm > 0:
            first = self.kept[still[0]][2]
            return Suspicion(symptom="silent", step=first, kind="written_unmoved", names=still)
        return None

    def _improved(self) -> bool:
        losses = [row.seen.loss for row in self.rows if math.isfinite(row.seen.loss)]
        third = max(1, len(losses) // 3)
        return sum(losses[-third:]) < 0.98 * sum(losses[:third])

    def _spike(self, *, ended: bool = False) -> Suspicion | None:
        losses = [abs(row.seen.loss) for row in self.rows]
        at = len(losses) - (1 if ended else 2)
        if at < STEPS_BEFORE_SPIKE or not all(math.isfinite(loss) for loss in losses):
            return None
        ceiling = self._ceiling(self.rows[:at], self.rows[at])
        if any(row.seen.loss < 0 for row in self.rows):
            ceiling *= 10  # a loss that crosses zero has no scale of its own
        if ceiling <= 0 or losses[at] <= JUMP * ceiling:
            return None
        if not ended and losses[-1] <= JUMP / 2 * ceiling and not self._foreign(at):
            return None
        # The loss shows a step late what an update did: blame the step whose update was out of line, if one was.
        start = at
        sizes = [row.seen.update_norm for row in self.rows]
        usual = sorted(sizes[: max(at - 1, 1)])[max(at - 1, 1) // 2]
        if at >= 2 and sizes[at - 1] > 3 * usual:
            start = at - 1
        return Suspicion(
            symptom="spike", step=self.rows[start].step, kind="spike", detail=f"{losses[at]:.3g} after {ceiling:.3g}"
        )

    def _foreign(self, at: int) -> bool:
        """Whether a loss that came down again was that of a batch out of another world: far beyond any jump, as is its
        gradient (a robust loss bounds that), with an entry far beyond all that batches before held in that place."""
        now, before = self.rows[at], self.rows[:at]
        if len(before) < STEPS_BEFORE_SPIKE or abs(now.seen.loss) <= JUMP**3 * self._ceiling(before, now):
            return False
        if now.seen.grad_norm <= JUMP**2 * max(row.seen.grad_norm for row in before):
            return False
        usual = {key: max(row.peaks.get(key, 0.0) for row in before) for key in now.peaks}
        return any(usual[key] > 0 and peak > ODD * usual[key] for key, peak in now.peaks.items())

    @staticmethod
    def _ceiling(before: list[_Row], now: _Row) -> float:
        """The highest loss so far, lifted where the batch of now is larger than the batch then."""
        return max(abs(row.seen.loss) * now.allowed_growth_since(row) for row in before)

    def _rising(self) -> Suspicion | None:
        """The loss has doubled, and doubled again, and again."""
        rows = self._recent(PATIENCE + 1)
        losses = [row.seen.loss for row in rows]
        if not rows or not all(math.isfinite(row.seen.loss) and row.seen.loss > 0 for row in self.rows):
            return None
        doubled = all(b.seen.loss > 2 * a.seen.loss * b.allowed_growth_since(a) for a, b in itertools.pairwise(rows))
        if doubled and losses[-1] > 2 * JUMP * self._ceiling(self.rows[:1], rows[-1]):
            return Suspicion(
                symptom="spike", step=rows[0].step, kind="spike", detail=f"{losses[0]:.3g} to {losses[-1]:.3g}"
            )
        return None

    def strides_too_long(self) -> bool:
        """Every update so far was a good part of the weights' own length, and the loss is no lower for it."""
        rows = [row for row in self.rows if row.seen.stepped]
        long = [row.seen.update_norm > LONG_STRIDE * row.seen.weight_norm > 0 for row in rows]
        return len(rows) >= PATIENCE and all(long) and not rows[-1].seen.loss < 0.9 * rows[0].seen.loss

    def _diverged(self) -> Suspicion | None:
        """Steps as long as the weights themselves, and a loss that went up and stayed up."""
        rows = self._recent(PATIENCE + 1)
        if not rows or not all(math.isfinite(row.seen.loss) for row in self.rows):
            return None
        first = rows[0]
        stride = first.seen.update_norm / first.seen.weight_norm if first.seen.weight_norm else 0.0
        before = self.rows[:-PATIENCE]
        higher = [row.seen.loss > 1.5 * self._ceiling(before, row) for row in rows[1:]]
        if (stride > LONG_STRIDE and all(higher)) or (stride > 1.0 and any(higher)):
            return Suspicion(
                symptom="spike", step=first.step, kind="spike", detail=f"one update moved the weights by {stride:.0%}"
            )
        return None
