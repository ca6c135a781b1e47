"""What was measured at one sampled step, as plain numbers. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...policy import Policy
from ...records import Finding, Severity
from ...rules import Rule
from ..finding import listed

HALF = ("float16", "bfloat16")
_NAMED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorVitals:
    """One parameter at one sampled step. Norms and counts are over a slice of it, `grad_absmax` over the whole."""

    name: str
    dtype: str = "float32"
    ndim: int = 2
    numel: int = 0
    trainable: bool = True
    in_optimizer: bool = True
    has_master: bool = False
    """The optimizer keeps a wider copy of it and updates that one."""
    starts_at_zero: bool = False
    lr: float = 0.0
    eps: float | None = None
    state_dtypes: tuple[str, ...] = ()
    has_gradient: bool = True
    """Whether it has had one in any sampled step."""
    module_ran: bool | None = None
    """Whether the module that owns it was called in forward; None where no hook was on."""
    grad_absmax: float = 0.0
    weight_norm: float = 0.0
    update_norm: float = 0.0
    num_sampled: int = 0
    num_live: int = 0
    """Sampled elements whose gradient is not zero."""
    num_moved: int = 0
    """Of these, how many the update changed."""

    @property
    def zero_share(self) -> float:
        """Share of the sampled gradient that is exactly zero."""
        return 1.0 - self.num_live / self.num_sampled if self.num_sampled else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationVitals:
    """The largest magnitude one module put out at one sampled step."""

    module: str
    dtype: str
    absmax: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """All that was measured at one sampled step whose update landed; `measured` is False for a look at the set-up."""

    step: int
    tensors: tuple[TensorVitals, ...] = ()
    activations: tuple[ActivationVitals, ...] = ()
    loss_scale: float | None = None
    loss: float | None = None
    measured: bool = True

    @property
    def uses_fp16(self) -> bool:
        """Whether anything in forward or any weight is in float16, whose gradients flush to zero below 6e-8."""
        dtypes = {seen.dtype for seen in self.activations} | {tensor.dtype for tensor in self.tensors}
        return "float16" in dtypes

    @property
    def loudest(self) -> float:
        """The largest gradient of all; the measure of what is a small one."""
        return max((tensor.grad_absmax for tensor in self.tensors), default=0.0)


Judge = Callable[[Sequence[Sampling], Policy], Finding | None]


def warming_up(samplings: Sequence[Sampling], count: int) -> bool:
    """Whether the learning rate has grown over the last `count` samplings: what does not move yet may do so soon."""
    last = [sampling for sampling in samplings if sampling.measured][-count:]
    rates = [max((tensor.lr for tensor in sampling.tensors), default=0.0) for sampling in last]
    return len(rates) > 1 and rates[-1] > 1.01 * rates[0]


def in_all(
    samplings: Sequence[Sampling], count: int, holds: Callable[[TensorVitals, Sampling], bool]
) -> list[TensorVitals]:
    """The tensors for which it held in each of the last `count` measured samplings, as they are in the last one."""
    last = [sampling for sampling in samplings if sampling.measured][-count:]
    if len(last) < count:
        return []
    names = set.intersection(*({t.name for t in sampling.tensors if holds(t, sampling)} for sampling in last))
    return [tensor for tensor in last[-1].tensors if tensor.name in names]


def about(
    rule: Rule, sampling: Sampling, severity: Severity, names: Iterable[str], detail: str, **evidence: Any
) -> Finding:
    """A finding of `rule` on these tensors or modules; `detail` goes on after their names."""
    named = list(names)
    return Finding(
        code=rule.code,
        slug=rule.slug,
        severity=severity,
        step=sampling.step,
        subject=named[0] if named else "",
        detail=f"{listed(named)} {detail}",
        evidence={"names": named[:_NAMED], "num_names": len(named), **evidence},
    )
