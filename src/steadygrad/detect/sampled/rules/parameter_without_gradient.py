"""A trainable parameter in the optimizer never receives a gradient.

What it sees
    It requires a gradient and an optimizer holds it, but in none of the sampled steps, at least three, did backward
    reach it.

Why it hurts
    It stays what it was at the start while the rest learns around it: an adapter that adapts nothing. The usual
    cause is a graph that is cut: a detach, a no_grad, re-entrant checkpointing of an input that needs no gradient.

Smallest example
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)   # x.requires_grad is False
    # fixed
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

What to do
    With checkpointing use `use_reentrant=False` or make the inputs require a gradient. Otherwise look for a detach
    on the way, or freeze the parameter if it is not meant to learn.

Safety
    It changes nothing. Frozen parameters are not looked at. Where the module that owns it was not even called, as
    a pooler that is never asked or an expert without tokens, it is a note.

References
    https://github.com/huggingface/transformers/issues/42489
"""

from __future__ import annotations

from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ...observations.observed_run import PATIENCE, ObservedRun, Suspicion
from ...observations.step_observation import owner
from ..sample_helpers import StepObservation, TensorNumbers, about, in_all

RULE = Rule("SY404", "parameter_without_gradient", "A trainable parameter in the optimizer never receives a gradient.")
_SAMPLINGS = 3


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; a parameter that ever had a gradient is never named."""
    reached = {tensor.name for sampling in samplings for tensor in sampling.tensors if tensor.has_gradient}
    missed = [tensor for tensor in in_all(samplings, _SAMPLINGS, _missed) if tensor.name not in reached]
    if not missed:
        return None
    cut_off = [tensor for tensor in missed if tensor.module_ran is not False]
    if cut_off:
        severity = Severity.WARNING
        said = "are to be trained but received no gradient"
        said += ", though their modules ran" if cut_off[0].module_ran else " in any sampled step"
    else:
        severity, said = Severity.NOTE, "are in the optimizer, and their modules are never called"
    return about(
        RULE,
        samplings[-1],
        severity,
        [tensor.name for tensor in cut_off or missed],
        said,
        num_expected=sum(tensor.trainable and tensor.in_optimizer for tensor in samplings[-1].tensors),
        num_unused=len(missed) - len(cut_off),
    )


def suspect(run: ObservedRun) -> Suspicion | None:
    """Over steps in a row: held by an optimizer, used by forward, and no step so far brought it any gradient."""
    # A loss of exactly zero (a satisfied margin) asks for no gradient.
    steps = [observed for observed in run.steps if observed.backward_ran and observed.loss != 0]
    if len(run.steps) < PATIENCE or not any(observed.loss != 0 for observed in run.steps):
        return None
    names = [name for name in run.last.trainable if name in run.last.held]
    starved = {name for name in names if all(observed.gradient_norm(name) == 0.0 for observed in steps)}
    # A bias alone may cancel for good reasons (a difference of two outputs, a softmax over keys): a module that learns
    # nothing at all is another matter.
    learning = {owner(name) for name in names if name not in starved}
    alone = [name for name in names if name in starved and owner(name) not in learning]
    found = tuple(name for name in alone if name in run.used())
    if not found:
        return None
    return Suspicion(symptom="silent", step=run.steps[0].step, kind="zero_gradient", names=found, code=RULE.code)


def _missed(sampling: StepObservation) -> list[TensorNumbers]:
    return [t for t in sampling.tensors if t.trainable and t.in_optimizer and not t.has_gradient]


def _run(trainable: bool) -> list[StepObservation]:
    head = TensorNumbers(name="head", grad_absmax=1.0)
    adapter = TensorNumbers(name="block.lora_A", has_gradient=False, trainable=trainable)
    return [StepObservation(step=step, tensors=(head, adapter)) for step in (1, 2, 5)]


def SPECIMEN() -> list[StepObservation]:
    return _run(trainable=True)


def NEAR_MISS() -> list[StepObservation]:
    """A frozen backbone has no gradient by intention."""
    return _run(trainable=False)
