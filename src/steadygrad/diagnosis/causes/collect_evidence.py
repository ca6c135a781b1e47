"""From replays to evidence: every fact the judges ask for, gathered once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from ...detect.observations.observed_run import Suspicion
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.unregistered_tensors import plain_tensors
from ...records import Origin
from ..interventions.backend.alternatives import failed_kernel, proved_by
from ..interventions.custom_functions import OtherArguments, function_at, made_small, without_equals, without_zeros
from ..interventions.loss_scale import LossScaleChange
from ..interventions.precision_changes import Precision
from ..isolation.index_bounds import is_of_extension
from ..locate.examine import Examination, cancelled, facts_of, locate, number_given, owner_of, tiny_scalar_in_half
from ..locate.external_changes import changes_between_steps
from ..locate.lost_gradient import (
    common_module,
    cut_origin,
    gradient_survives_in_float32,
    has_moments_without_spread,
    trace_step,
    underflow_origin,
)
from ..locate.reattribute import as_state, batch_outlier, odd_entry, reattribute_to_batch, reattribute_to_state, sound
from ..replay.replay_observation import ReplayObservation, absmax, named_state
from ..replay.replay_step import CANNOT_RUN, replay
from ..replay.replayable import Replayable
from .evidence import Evidence

_PROBES = {"zeros": without_zeros, "equals": without_equals, "size": made_small}


def collect_evidence(
    replayable: Replayable, exam: Examination, suspicion: Suspicion | None
) -> tuple[Evidence, Origin | None]:
    """All evidence about a step in which something is not finite, and its origin."""
    facts, seen = replayable.facts, exam.seen
    symptom = symptom_of(seen, suspicion)
    origin = locate(exam)
    changes = changes_between_steps(replayable)
    evidence = Evidence(
        symptom=symptom,
        step=facts.step,
        bad_before=tuple(seen.bad_before),
        changes=changes,
        losses=_losses(replayable),
        blew_up=_blew_up(_losses(replayable)) and not other_batches_are_calm(replayable),
        loss_scale=seen.loss_scale,
        dynamic_scale=facts.dynamic_scale,
        autocast=str(facts.autocast).removeprefix("torch.") if facts.autocast else None,
        rate=_rate(replayable),
    )
    if exam.bad_origin is None and seen.bad_before:
        kind, name = seen.bad_before[0]
        origin = Origin(phase="state", module=owner_of(kind, name), tensor=name.partition("/")[0])
        evidence = replace(evidence, leaf=(kind, name))
    elif exam.bad_origin is not None:
        evidence = replace(
            evidence, leaf=exam.bad_origin.leaf, is_nan=exam.bad_origin.is_nan, bits_written=exam.bad_origin.bits
        )
    if origin is None:
        return evidence, None
    evidence = replace(evidence, phase=origin.phase)
    if exam.record is not None:
        evidence = _about_op(replayable, exam, evidence, origin)
        evidence = _with_other_kernels(replayable, exam, evidence)
        evidence = _of_unseen_formula(replayable, exam, evidence)
        evidence, origin = reattribute_to_state(replayable, exam, evidence, origin)
        evidence, origin = reattribute_to_batch(replayable, exam, evidence, origin)
    if origin.phase == "state" and evidence.leaf is not None:
        origin = replace(origin, module=_owner_of_all(evidence))
        since_start = evidence.leaf in exam.trace.unwritten or _bad_since_start(replayable, evidence.leaf)
        evidence = replace(evidence, bad_since_start=since_start)
    return evidence, origin


def symptom_of(seen: ReplayObservation, suspicion: Suspicion | None) -> str:
    if not seen.loss_finite:
        return "nan_loss" if any(math.isnan(value) for value in seen.terms.values()) else "inf_loss"
    if seen.bad_gradients or seen.bad_entering:
        return "nan_grad"
    if any(kind == "parameter" for kind, _ in seen.bad_after):
        return "nan_param"
    if seen.bad_after or seen.bad_before:
        return "nan_state"
    return suspicion.symptom if suspicion is not None else "none"


def _about_op(replayable: Replayable, exam: Examination, evidence: Evidence, origin: Origin) -> Evidence:
    record = exam.record
    assert record is not None
    outputs = [d for d in exam.captured_op.outputs if d.num_nan or d.num_inf]
    shown = outputs or list(exam.captured_op.outputs)
    dtype = shown[0].dtype if shown else ""
    named = exam.named or record
    low = dtype in ("float16", "bfloat16") or evidence.autocast == "float16"
    forward_bad = any(d.num_nan or d.num_inf for d in exam.forward_captured_op.outputs)
    return replace(
        evidence,
        op=origin.op,
        call=named.call,
        born_in=record.op,
        backward=record.backward,
        stage=record.stage,
        dtype=dtype,
        inputs=exam.captured_op.inputs,
        outputs=exam.captured_op.outputs,
        facts=facts_of(exam),
        number=number_given(exam),
        intended_infinities=any(d.num_inf for d in exam.captured_op.inputs) or any(map(math.isinf, record.scalars)),
        mask_reached_loss=exam.mask_reached_loss,
        cancelled=cancelled(exam),
        tiny_scalar_in_half=tiny_scalar_in_half(exam),
        saturated=exam.saturated,
        capped=exam.capped,
        discarded_forward=record.backward and forward_bad and exam.seen.loss_finite,
        lost_eps=_lost_eps(replayable, dtype) if record.stage == "commit" else None,
        float32_step_finite=sound(replayable, Precision(torch.float32)) if low else None,
        unit_scale_finite=sound(replayable, LossScaleChange(1.0 / exam.seen.loss_scale))
        if exam.seen.loss_scale
        else None,
    )


def _lost_eps(replayable: Replayable, dtype: str) -> float | None:
    """The first eps of an optimizer that this type cannot hold: it rounds to zero."""
    kind = getattr(torch, dtype, None)
    given = (group.get("eps") for optimizer in replayable.optimizers for group in optimizer.param_groups)
    numbers = (eps for option in given for eps in (option if isinstance(option, tuple | list) else (option,)))
    positive = (float(eps) for eps in numbers if isinstance(eps, int | float) and eps > 0)
    lost = (eps for eps in positive if kind is not None and not torch.tensor(eps, dtype=kind).any())
    return next(lost, None)


def _with_other_kernels(replayable: Replayable, exam: Examination, evidence: Evidence) -> Evidence:
    """Whether the step is finite when another kernel computes the op that failed, and which one."""
    if not evidence.inputs_finite:
        return evidence
    slug = proved_by(failed_kernel(replayable, exam, evidence))
    return replace(evidence, plain_backend_finite=None if slug is None else bool(slug), proved_by=slug or "")


def _of_unseen_formula(replayable: Replayable, exam: Examination, evidence: Evidence) -> Evidence:
    """What a kernel whose formula is not seen does not bear, by what the step is finite with."""
    record, born = exam.record, exam.bad_origin
    if record is None or born is None or record.stage != "forward" or record.backward or evidence.proved_by:
        return evidence
    kernel: Any = None
    if born.unseen:
        kernel = next(filter(None, (function_at(frame.source) for frame in record.stack.frames)), None)
    elif exam.captured_op.func is not None and is_of_extension(exam.captured_op.func) and evidence.inputs_finite:
        kernel = record.op
    for name, change in _PROBES.items() if kernel is not None else ():
        if sound(replayable, OtherArguments(kernel, change), until="backward" if exam.seen.loss_finite else "forward"):
            return replace(evidence, kernel_fails_on=name)
    return evidence


def _owner_of_all(evidence: Evidence) -> str | None:
    """The module of the bad state; None where several modules hold some of it."""
    assert evidence.leaf is not None
    kind, name = evidence.leaf
    alike = [n for k, n in evidence.bad_before if k == kind] or [name]
    return common_module(sorted({n.partition("/")[0] for n in (*alike, name)}))


def _bad_since_start(replayable: Replayable, leaf: tuple[str, str]) -> bool:
    """Whether this state was bad before the very first step, as far back as it can be looked up."""
    if replayable.facts.step == 0:
        return True
    if replayable.facts.bad_at_start is not None:
        return leaf in replayable.facts.bad_at_start
    first = replayable.facts.earlier(replayable.facts.step) if replayable.facts.earlier else None
    if first is None:
        return False
    first.restore()
    everything = [*named_state(first), *(("buffer", name, tensor) for name, tensor in plain_tensors(first.model))]
    bad = any((k, n) == leaf and not absmax(t) < 1e15 for k, n, t in everything)
    replayable.restore()
    return bad


def _losses(replayable: Replayable) -> tuple[float, ...]:
    return tuple(r.loss for r in replayable.facts.history if r.step < replayable.facts.step and math.isfinite(r.loss))


def _blew_up(losses: tuple[float, ...]) -> bool:
    """Whether the finite losses before this step had already left the range they lived in."""
    if len(losses) < 2:
        return False
    low = min(abs(loss) for loss in losses[:-1])
    # A loss that fell below zero has not risen, however large it is.
    return losses[-1] > 5 * max(low, 1e-12) and losses[-1] > 2 * abs(losses[0])


def other_batches_are_calm(replayable: Replayable) -> bool:
    """Whether another batch does as well as ever with these very weights: then it is not the weights that ran away."""
    following = getattr(replayable, "following", None)
    ceiling = max((abs(loss) for loss in _losses(replayable)), default=0.0)
    for ahead in (1, 2):
        batches = following(ahead) if following is not None else None
        if batches is None:
            return False
        try:
            seen = replay(replayable, batches=batches, until="backward")
        except CANNOT_RUN:
            return False
        if seen.loss_finite and not seen.bad_gradients and abs(seen.loss) <= ceiling:
            return True
    return False


def _other_batches(replayable: Replayable) -> list[Any]:
    following = getattr(replayable, "following", None)
    steps = [following(ahead) for ahead in (1, 2, 3)] if following is not None else []
    return [batch for batches in steps if batches is not None for batch in batches]


def risen(replayable: Replayable, seen: ReplayObservation) -> bool:
    """Whether this step's own loss or gradient is already far above those before it, so that an earlier step did it."""
    before = [r for r in replayable.facts.history if r.step < replayable.facts.step and r.applied]
    losses, norms = [abs(r.loss) for r in before if math.isfinite(r.loss)], [r.grad_norm for r in before]
    high = bool(losses) and abs(seen.loss) > 2 * max(losses)
    norm = seen.grad_norm / (seen.loss_scale or 1.0)
    return high or (bool(norms) and norm > 5 * max(norms))


def _rate(replayable: Replayable) -> float:
    return max((float(g["lr"] or 0.0) for o in replayable.optimizers for g in o.param_groups), default=0.0)


def collect_silent_evidence(replayable: Replayable, suspicion: Suspicion) -> tuple[Evidence, Origin]:
    """Evidence and origin where nothing is non-finite."""
    seen = replay(replayable)
    rate = _rate(replayable)
    evidence = Evidence(
        symptom=suspicion.symptom,
        kind=suspicion.kind,
        step=replayable.facts.step,
        names=suspicion.names,
        losses=_losses(replayable),
        loss_scale=seen.loss_scale,
        dynamic_scale=replayable.facts.dynamic_scale,
        autocast=str(replayable.facts.autocast).removeprefix("torch.") if replayable.facts.autocast else None,
        changes=changes_between_steps(replayable),
        rate=rate,
        entering_ratio=_entering_ratio(replayable, seen),
        risen=risen(replayable, seen),
    )
    names = suspicion.names
    match suspicion.kind:
        case "zero_gradient":
            alive = gradient_survives_in_float32(replayable, names)
            trace = trace_step(replayable)
            origin = underflow_origin(replayable, trace, names) if alive else cut_origin(trace, names)
            evidence = replace(evidence, gradient_in_float32=alive, dtype="float16" if trace.uses("float16") else "")
        case "spike":
            evidence, origin = _about_spike(replayable, evidence)
        case "state_underflow":
            spread = has_moments_without_spread(replayable)
            evidence = replace(evidence, moments_without_spread=spread)
            origin = Origin(phase="state", module=common_module(names), tensor=names[0] if names else None)
        case "tampered_gradient":
            origin = Origin(phase="backward", module=common_module(names), tensor=names[0] if names else None)
        case _:
            whole = (
                suspicion.kind in ("unmoved", "written_unmoved", "outside_optimizer") or suspicion.detail == "zeroed"
            )
            module = _whole_module(replayable, names) if whole else None
            tensor = names[0] if len(names) == 1 else None
            origin = Origin(phase="optimizer", module=module, tensor=tensor)
    return replace(evidence, phase=origin.phase), origin


def _whole_module(replayable: Replayable, names: tuple[str, ...]) -> str | None:
    """The module that these parameters make up; None where they are scattered over a module that has others too."""
    module = common_module(names)
    if module is None or len(names) == 1:
        return module
    inside = [name for name, _ in replayable.model.named_parameters() if name.startswith(f"{module}.")]
    direct = any(name.rpartition(".")[0] == module for name in names)
    return module if direct or set(inside) <= set(names) else None


def _about_spike(replayable: Replayable, evidence: Evidence) -> tuple[Evidence, Origin]:
    replayable.restore()
    replayable.prepare()
    spread = has_moments_without_spread(replayable)
    history = [r.lr for r in replayable.facts.history if r.step < replayable.facts.step]
    evidence = replace(evidence, moments_without_spread=spread, earlier_rate=history[-1] if history else None)
    if spread > 0.01:
        return evidence, Origin(phase="state")
    suspects = [change for change in evidence.changes if change.out_of_range]
    if suspects:
        return as_state(evidence, Origin(phase="state"), (suspects[0].kind, suspects[0].name))
    outlier = batch_outlier(replayable.batches[-1]) if replayable.batches else None
    if outlier is not None:
        return replace(evidence, batch_outlier=outlier), Origin(phase="data", tensor=outlier[0])
    if evidence.risen and other_batches_are_calm(replayable):
        odd = odd_entry(replayable.batches[-1], _other_batches(replayable))
        if odd is not None:
            return replace(evidence, batch_outlier=odd), Origin(phase="data", tensor=odd[0])
        return evidence, Origin(phase="data")  # this batch alone is out of line, and nothing says why
    return evidence, Origin(phase="optimizer")


def _entering_ratio(replayable: Replayable, seen: ReplayObservation) -> float | None:
    true = seen.grad_norm / (seen.loss_scale or 1.0)
    limit = replayable.facts.max_grad_norm
    expected = min(true, limit) if limit else true
    actual = math.hypot(*seen.entering.values())
    return actual / expected if seen.entering and expected > 0 and math.isfinite(expected) else None
