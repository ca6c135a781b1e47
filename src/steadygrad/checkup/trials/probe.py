"""The probe: can this model train in fp16, bf16 or fp8?

    result = sg.probe(model, loss_fn, batch)
    for trial in result.trials:
        print(trial.dtype, trial.fits, trial.because, trial.wider)

One watched step gives the magnitudes of every module's outputs and of the gradients that come back to it. What they
mean for a dtype is computed from them, and checked by running the step in it. The caller's model, gradients and random
numbers are the same bits afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...engine.fault_barrier import UserCodeError
from ...engine.state.batch_buffer import pristine
from ...engine.step.user_step import named_terms
from ...records.checks.probe import Fit, ModuleRange, PrecisionTrial, Probe
from ...records.errors import UsageError
from .borrowed_objects import borrowed
from .dtype_ranges import FORMATS, Format, RangeTally, loss_scale_for
from .eight_bit_scales import AmaxHistory, rounded_layers
from .module_hooks import mapped
from .precision_trial import PrecisionRun, PrecisionStage, try_precision, try_scales


def probe(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Any],
    batch: Any,
    *,
    dtypes: Sequence[str] = tuple(FORMATS),
    earlier: Sequence[Any] = (),
) -> Probe:
    """Measure one step, and run it in every dtype.

    Args:
        model: the module to train, in the mode it shall train in.
        loss_fn: `loss_fn(model, batch)` returns a scalar or a mapping with "loss", as for a Guard.
        batch: one batch; a copy of it is used.
        dtypes: among fp16, bf16, fp8_e4m3 and fp8_e5m2.
        earlier: other batches, for delayed scales of 8-bit floats: their largest magnitudes scale this one.

    Returns:
        A Probe: largest and smallest magnitudes of every module, and a verdict for each dtype.

    Example:
        >>> found = sg.probe(torch.nn.Linear(4, 1), lambda model, batch: model(batch).mean(), torch.ones(8, 4))
        >>> found.fit
        True
    """
    if not isinstance(model, nn.Module) or not callable(loss_fn):
        raise UsageError("sg.probe needs a torch.nn.Module, loss_fn(model, batch), and a batch.")
    if unknown := [name for name in dtypes if name not in FORMATS]:
        raise UsageError(f"sg.probe does not know {', '.join(unknown)}; it knows {', '.join(FORMATS)}.")
    notes: list[str] = []
    work, given = model, batch
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()):
        work, given = copy.deepcopy(model).float(), mapped(batch, _wide)
        notes.append("the weights are not float32: a float32 copy of the model and of the batch was probed")
    device = next((p.device.type for p in work.parameters()), "cpu")
    with borrowed(model, (), loss_fn) as lent, borrowed(work) as copied:

        def put_back() -> None:
            lent.put_back()
            copied.put_back()

        feed = [given]

        def loss() -> Tensor:
            answer = loss_fn(work, pristine(feed[0], clone=True))
            try:
                return named_terms(answer)["loss"]
            except UserCodeError as fault:
                raise fault.original from None

        stage = PrecisionStage(work, loss, put_back, device)
        try:
            reference = stage.run()
        except UsageError:
            raise
        except Exception as error:  # the user's own loss: one sentence, and the error behind it
            of = "the model" if work is model else "its float32 copy"
            raise UsageError(f"One step of {of} raised {type(error).__name__}: {error}") from error
        history = AmaxHistory() if earlier and any(name.startswith("fp8") for name in dtypes) else None
        for each in earlier if history is not None else ():
            feed[0] = each if work is model else mapped(each, _wide)
            stage.run([rounded_layers(work, FORMATS["fp8_e4m3"], (), history)])  # type: ignore[arg-type]
        feed[0] = given
        trials = tuple(_tried(stage, FORMATS[name], reference, history) for name in dtypes)
        if not reference.finite:
            notes.append("the step is already non-finite in float32; fix that first (steady doctor, sg.diagnose)")
        modules = _ranges(reference, [FORMATS[name] for name in dtypes])
    return Probe(
        loss=reference.loss,
        modules=modules,
        trials=trials,
        num_parameters=sum(p.numel() for p in model.parameters()),
        notes=tuple(notes),
    )


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _tried(stage: PrecisionStage, form: Format, reference: PrecisionRun, history: AmaxHistory | None) -> PrecisionTrial:
    """A step that raises in a dtype, as one that fixes a dtype by hand may, does not fit in it."""
    try:
        trial = try_precision(stage, form, reference)
        return replace(trial, scales=try_scales(stage, form, reference, history)) if trial.emulated else trial
    except Exception as error:
        return PrecisionTrial(dtype=form.name, fits=False, because=f"the step raised {type(error).__name__}: {error}")


def _ranges(run: PrecisionRun, forms: list[Format]) -> tuple[ModuleRange, ...]:
    """One line a module, in the order in which they ran."""
    scale = loss_scale_for(list(run.watch.gradients.values()))
    found = []
    for name, out in run.watch.outputs.items():
        back = run.watch.gradients.get(name, RangeTally())
        found.append(
            ModuleRange(
                name=name,
                kind=run.watch.kinds[name],
                dtype=out.dtype,
                smallest=None if out.empty else out.smallest,
                largest=None if out.empty else out.largest,
                grad_smallest=None if back.empty else back.smallest,
                grad_largest=None if back.empty else back.largest,
                num_elements=out.num_elements,
                num_bad=out.num_bad + back.num_bad,
                fits={form.name: _fit(form, out, back, scale) for form in forms},
            )
        )
    return tuple(found)


def _fit(form: Format, out: RangeTally, back: RangeTally, loss_scale: float) -> Fit:
    own = form.name.startswith("fp8")
    grad_scale = back.own_scale(form) if own else loss_scale if form.name == "fp16" else 1.0
    return Fit(
        headroom=out.headroom(form),
        grad_headroom=back.headroom(form),
        underflow=out.vanishing(form, scale=out.own_scale(form) if own else 1.0),
        grad_underflow=back.vanishing(form, scale=grad_scale),
    )
