"""One step, really run in a precision, and held against the same step in float32.

fp16 and bf16 run under autocast, fp16 with a loss scale. The 8-bit floats are emulated where they are used in practice:
inputs, weights and incoming gradients of linear and convolution layers are rounded to them under a scale for each
tensor, and the arithmetic stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.tensors.torch_private import dynamo_is_loaded
from ...records.checks.probe import PrecisionTrial, ScaleTrial
from ..advice import listed
from .dtype_ranges import FORMATS, Format, loss_scale_for
from .eight_bit_scales import AmaxHistory, BlockScale, CurrentScale, DelayedScale, Scaling, rounded_layers
from .module_hooks import ModuleTallies, kept_wide, watching

COSINE = {"fp16": 0.98, "bf16": 0.98, "fp8_e4m3": 0.9, "fp8_e5m2": 0.9}
"""A gradient that points further away than this is another gradient."""
MOST_ROUNDS = 6
VANISHING = 0.05


@dataclass(slots=True)
class PrecisionRun:
    """What one run of the step gave."""

    loss: float
    gradients: list[Tensor | None]
    watch: ModuleTallies = field(default_factory=ModuleTallies)

    @property
    def finite(self) -> bool:
        given = [g for g in self.gradients if g is not None]
        return math.isfinite(self.loss) and all(bool(torch.isfinite(g).all()) for g in given)


class PrecisionStage:
    """A model, its loss and one batch, run again and again from the same state."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], put_back: Callable[[], None], device: str) -> None:
        self.model, self._loss, self._put_back, self.device = model, loss, put_back, device
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def run(self, around: Sequence[AbstractContextManager[Any]] = (), *, scale: float = 1.0) -> PrecisionRun:
        """Forward and backward within the given contexts. The state is restored afterwards."""
        for parameter in self.model.parameters():
            parameter.grad = None
        with ExitStack() as stack:
            if dynamo_is_loaded():
                # Hooks do not fire in code that was compiled before they were there.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            watch = stack.enter_context(watching(self.model))
            for each in around:
                stack.enter_context(each)
            loss = self._loss()
            value = float(loss.detach())
            with torch.autocast(self.device, enabled=False):
                (loss.float() * scale).backward()  # type: ignore[no-untyped-call]
        gradients = [None if p.grad is None else p.grad.detach().float() / scale for p in self.parameters]
        self._put_back()
        return PrecisionRun(value, gradients, watch)

    def autocast(self, form: Format) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype=form.torch_dtype)

    def wide(self, names: Sequence[str]) -> AbstractContextManager[Any]:
        return kept_wide(self.model, names, self.device)


def try_precision(stage: PrecisionStage, form: Format, reference: PrecisionRun) -> PrecisionTrial:
    """Run the step in `form`; if it does not fit, find the modules that need a wider type and run it with those."""
    emulated = form.name.startswith("fp8")
    scale = loss_scale_for(list(reference.watch.gradients.values())) if form.name == "fp16" else 1.0

    def attempt(wider: Sequence[str]) -> tuple[PrecisionRun, float]:
        return _run_8bit(stage, form, wider) if emulated else _run_half(stage, form, wider, scale)

    first, used_scale = attempt(())
    fits, because = _judge(form, first, reference)
    wider: list[str] = []
    mended: bool | None = None
    run = first
    for _ in range(0 if fits else MOST_ROUNDS):
        fresh = [name for name in _suspects(form, run, reference) if name not in wider]
        if not fresh:
            break
        wider += fresh
        run, _ = attempt(wider)
        mended = _judge(form, run, reference)[0]
        if mended:
            break
    return PrecisionTrial(
        dtype=form.name,
        fits=fits,
        because=because if fits or not wider else f"{because}; {_named(wider, mended)}",
        emulated=emulated,
        loss=first.loss,
        loss_scale=used_scale if form.name == "fp16" else None,
        gradient_cosine=_cosine(first.gradients, reference.gradients),
        vanished=_vanished(first.gradients, reference.gradients),
        wider=tuple(wider),
        fits_with_wider=mended,
    )


def _named(wider: list[str], mended: bool | None) -> str:
    names = [f"module {name}" if name.isdigit() else name for name in wider]
    words = f"with {listed(names, 5)} in float32"
    return f"{words} it fits" if mended else f"{words} it still does not"


def _run_half(stage: PrecisionStage, form: Format, wider: Sequence[str], scale: float) -> tuple[PrecisionRun, float]:
    """With fp16 the loss scale gives way first, as a GradScaler's would, before a module is blamed."""
    while True:
        run = stage.run([stage.autocast(form), stage.wide(wider)], scale=scale)
        if run.finite or not math.isfinite(run.loss) or scale <= 1.0 or form.name != "fp16":
            return run, scale
        scale = max(1.0, scale / 16)


def _run_8bit(
    stage: PrecisionStage,
    form: Format,
    wider: Sequence[str],
    scaling: Scaling | None = None,
    backward: Format | None = None,
) -> tuple[PrecisionRun, float]:
    layers = rounded_layers(stage.model, form, wider, scaling or CurrentScale(), backward)
    return stage.run([layers]), 1.0


def _judge(form: Format, run: PrecisionRun, reference: PrecisionRun) -> tuple[bool, str]:
    if not math.isfinite(run.loss):
        return False, f"the loss is {run.loss}"
    if not run.finite:
        return False, "gradients are not finite"
    cosine = _cosine(run.gradients, reference.gradients)
    if cosine is not None and cosine < COSINE[form.name]:
        return False, f"the gradient points elsewhere (cosine {cosine:.3f} with float32)"
    gap = abs(run.loss - reference.loss) / max(abs(reference.loss), 1e-12)
    return True, f"finite; loss within {gap:.1e}, gradient cosine {1.0 if cosine is None else cosine:.4f}"


def _suspects(form: Format, run: PrecisionRun, reference: PrecisionRun) -> list[str]:
    """Who should be wider: whoever gave birth to a bad value, else who loses most of its numbers."""
    if not math.isfinite(run.loss) or run.watch.born:
        return run.watch.born[:1]
    if not run.finite:
        return run.watch.born_in_backward[:1]
    losers = {
        name: max(out.vanishing(form, scale=_scale(form, out)), _grad_loss(form, reference, name))
        for name, out in reference.watch.outputs.items()
    }
    ranked = sorted((name for name in losers if losers[name] > VANISHING), key=lambda name: -losers[name])
    return [name for name in ranked if name in dict(_leaves(reference))][:4]


def _leaves(reference: PrecisionRun) -> list[tuple[str, str]]:
    names = list(reference.watch.kinds)
    return [(n, k) for n, k in reference.watch.kinds.items() if not any(other.startswith(n + ".") for other in names)]


def _scale(form: Format, tally: Any) -> float:
    return float(tally.own_scale(form)) if form.name.startswith("fp8") else 1.0


def _grad_loss(form: Format, reference: PrecisionRun, name: str) -> float:
    tally = reference.watch.gradients.get(name)
    back = FORMATS["fp8_e5m2"] if form.name.startswith("fp8") else form
    scale = 1.0 if tally is None else tally.own_scale(back)
    return 0.0 if tally is None else tally.vanishing(back, scale=min(scale, 65536.0) if form.name == "fp16" else scale)


def _cosine(ours: list[Tensor | None], theirs: list[Tensor | None]) -> float | None:
    """Over all gradients as one vector, in float64 sums; None where there is none or one is not finite."""
    dot = left = right = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a is not None and b is not None:
            dot += float((a.double() * b.double()).sum())
            left += float(a.double().square().sum())
            right += float(b.double().square().sum())
    if right == 0.0 or not math.isfinite(left * right):
        return None
    return dot / math.sqrt(left * right) if left else 0.0


def _vanished(ours: list[Tensor | None], theirs: list[Tensor | None]) -> float | None:
    """The share of weight gradients that are zero now and were not in float32."""
    lost = total = 0
    for a, b in zip(ours, theirs, strict=True):
        if a is not None and b is not None:
            total += int((b != 0).sum())
            lost += int(((b != 0) & (a == 0)).sum())
    return lost / total if total else None


# -- 8-bit floats


def try_scales(
    stage: PrecisionStage, form: Format, reference: PrecisionRun, history: AmaxHistory | None
) -> tuple[ScaleTrial, ...]:
    """The step once more for each other way to choose a scale. `history` is what earlier batches had; None of none."""
    block = BlockScale()
    found = [_scale_trial("blocks of 32", _run_8bit(stage, form, (), block, backward=form)[0], form, reference)]
    if history is not None:
        delayed = DelayedScale(history)
        trial = _scale_trial("delayed", _run_8bit(stage, form, (), delayed)[0], form, reference)
        told = [*_in_history(history), *_above(delayed)]
        found.insert(0, replace(trial, because="; ".join([trial.because, *told])))
    return tuple(found)


def _scale_trial(scale: str, run: PrecisionRun, form: Format, reference: PrecisionRun) -> ScaleTrial:
    fits, because = _judge(form, run, reference)
    return ScaleTrial(
        scale=scale,
        fits=fits,
        because=because,
        gradient_cosine=_cosine(run.gradients, reference.gradients),
        vanished=_vanished(run.gradients, reference.gradients),
    )


def _in_history(history: AmaxHistory) -> list[str]:
    bad = [f"{what} of {name}" for (name, what), top in history.unusable.items() if top]
    zero = [f"{what} of {name}" for (name, what), top in history.unusable.items() if not top]
    told = (
        [f"earlier batches left an amax that is not finite for the {listed(bad, 3)}: use the current scale"]
        if bad
        else []
    )
    return told + ([f"nothing but zeros before in the {listed(zero, 3)}: the scale needs a floor"] if zero else [])


def _above(delayed: DelayedScale) -> list[str]:
    places = sorted(delayed.clipped, key=lambda place: -delayed.clipped[place])
    named = listed([f"{delayed.clipped[name, what]:,} {what} of {name}" for name, what in places], 3)
    return [f"above the end of the format: {named}"] if places else []


def rounded(tensor: Tensor, form: Format) -> Tensor:
    """As the 8-bit float would have it, under a power of two that brings its largest magnitude just under the end."""
    return CurrentScale().rounded(tensor, form, ("", ""))
