"""A parameter gets gradients and updates, and stays the same.

What it sees
    In three samplings in a row no sampled element with a gradient changed, though the learning rate is above zero,
    the gradient is no rounding noise, and the precision is not to blame.

Why it hurts
    Something undoes or ignores the update: a hook, a weight that is overwritten each step, an optimizer that steps
    a copy, a learning rate lost in a parameter group.

Smallest example
    optimizer.step(); model.load_state_dict(start)   # every step

What to do
    Look for what writes to the parameter besides the optimizer, and print the learning rate of its group.

Safety
    It changes nothing. Only elements with a gradient count, so unused rows of an embedding do not.

References
    https://docs.pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

from collections.abc import Sequence

from ...policy import Policy
from ...records import Finding, Severity
from ...rules import Rule
from .sampling import HALF, Sampling, TensorVitals, about, in_all, warming_up

RULE = Rule("SY406", "parameter_never_changes", "A parameter gets gradients and updates, and stays the same.")
_SAMPLINGS = 3
_QUIET = 1e-3  # below, a gradient may be rounding: a key's bias in attention has none in exact arithmetic


def judge(samplings: Sequence[Sampling], policy: Policy) -> Finding | None:
    """Pure; looks at plain numbers."""
    stuck = in_all(samplings, _SAMPLINGS, _is_stuck)
    if not stuck or warming_up(samplings, _SAMPLINGS):
        return None
    return about(
        RULE,
        samplings[-1],
        Severity.WARNING,
        [tensor.name for tensor in stuck],
        f"received gradients in {_SAMPLINGS} sampled steps and never changed",
        lr=stuck[0].lr,
        grad_absmax=stuck[0].grad_absmax,
    )


def _is_stuck(tensor: TensorVitals, sampling: Sampling) -> bool:
    if tensor.dtype in HALF or tensor.has_master or not tensor.in_optimizer or tensor.lr <= 0.0:
        return False
    return tensor.num_live > 0 and tensor.num_moved == 0 and tensor.grad_absmax > _QUIET * sampling.loudest


def _run(num_live: int) -> list[Sampling]:
    stuck = TensorVitals(name="embed", lr=1e-3, grad_absmax=0.1, num_sampled=64, num_live=num_live)
    return [Sampling(step=step, tensors=(stuck,)) for step in (1, 2, 5)]


def SPECIMEN() -> list[Sampling]:
    return _run(num_live=32)


def NEAR_MISS() -> list[Sampling]:
    """The sampled rows of the embedding were not in any of the batches."""
    return _run(num_live=0)
