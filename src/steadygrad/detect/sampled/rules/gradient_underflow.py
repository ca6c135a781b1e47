"""Gradients vanish into float16's zero.

What it sees
    Something runs in float16, and in three samplings in a row a tensor's gradient is exactly zero throughout,
    or mostly zero with the rest below the smallest normal float16 (6e-5, loss scale included), while other
    tensors have gradients. Where none has, the loss must not be zero.

Why it hurts
    Below 6e-8 float16 knows only zero. The part of the model behind it silently stops learning; loss and norm look
    fine.

Smallest example
    with torch.autocast("cpu", torch.float16): (1e-7 * auxiliary(x)).backward()   # no loss scale
    # fixed
    with torch.autocast("cpu", torch.bfloat16): (1e-7 * auxiliary(x)).backward()

What to do
    Use a loss scale, or bfloat16, whose exponent is float32's. Raise a tiny loss weight, or compute that term in
    float32.

Safety
    It changes nothing. A branch that is switched off on purpose in float16 looks the same from outside.

References
    https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

from collections.abc import Sequence

from ....policy import Policy
from ....records import Finding, Severity
from ....records.rules import Rule
from ..sample_helpers import StepObservation, TensorNumbers, about, in_all

RULE = Rule("SY401", "gradient_underflow", "Gradients vanish into float16's zero.")
_SAMPLINGS = 3
_SMALLEST_NORMAL = 2.0**-14


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    """Pure; looks at plain numbers."""
    starved = in_all(samplings, _SAMPLINGS, _starved)
    if not starved:
        return None
    zero = sum(tensor.grad_absmax == 0.0 for tensor in starved)
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [tensor.name for tensor in starved],
        f"get no gradient in float16: {zero} of {len(starved)} are exactly zero, the rest is flushed",
        num_zero=zero,
        loss_scale=samplings[-1].loss_scale,
    )


def _starved(sampling: StepObservation) -> list[TensorNumbers]:
    if not sampling.uses_fp16 or (sampling.loudest == 0.0 and not sampling.loss):
        return []  # the second: a batch with nothing left to teach
    return [tensor for tensor in sampling.tensors if _is_starved(tensor, sampling.loss_scale or 1.0)]


def _is_starved(tensor: TensorNumbers, scale: float) -> bool:
    if not (tensor.trainable and tensor.has_gradient and tensor.num_sampled):
        return False
    if tensor.grad_absmax == 0.0:
        return True
    return tensor.zero_share >= 0.5 and tensor.grad_absmax * scale < _SMALLEST_NORMAL


def _run(*absmaxes: float) -> list[StepObservation]:
    head = TensorNumbers(name="head", dtype="float16", grad_absmax=0.1, num_sampled=64, num_live=64)
    return [
        StepObservation(
            step=step,
            tensors=(head, TensorNumbers(name="rays", grad_absmax=absmax, num_sampled=64, num_live=64 * (absmax > 0))),
        )
        for step, absmax in enumerate(absmaxes, start=1)
    ]


def SPECIMEN() -> list[StepObservation]:
    return _run(0.0, 0.0, 0.0)


def NEAR_MISS() -> list[StepObservation]:
    """An adapter whose other half starts at zero has no gradient at the first step only."""
    return _run(0.0, 1e-3, 1e-3)
