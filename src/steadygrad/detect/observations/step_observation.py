"""The one record of what was observed in a step. Plain numbers; standard library only.

A live step fills little of it, a sampled step more (`tensors`, `activations`), a replay nearly all. What was not
observed keeps its default, and a rule that needs it then reports nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...records import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNumbers:
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
class ActivationNumbers:
    """The largest magnitude one module put out at one sampled step."""

    module: str
    dtype: str
    absmax: float


@dataclass(slots=True)
class Gradient:
    """One parameter's gradient after backward: None, zero, finite or not, and its norm."""

    name: str
    present: bool
    norm: float = 0.0
    absmax: float = 0.0

    @property
    def finite(self) -> bool:
        return math.isfinite(self.absmax)


@dataclass(slots=True, kw_only=True)
class StepObservation:
    """What was observed in one step. `bad_*` are names of tensors holding a NaN or an infinity."""

    step: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    loss_scale: float | None = None
    dynamic_scale: bool = False
    """Whether a scaler looks for its scale by itself, so that some overflows are ordinary."""
    accumulation: int = 1
    max_grad_norm: float | None = None
    """What the loop clips the gradient norm to."""
    rate: float = 0.0
    """The highest learning rate of all groups."""
    backward_ran: bool = True
    stepped: bool = False
    """Whether an optimizer was asked to make an update."""

    tensors: tuple[TensorNumbers, ...] = ()
    activations: tuple[ActivationNumbers, ...] = ()
    measured: bool = True
    """False for a look at the set-up before any step: dtypes and membership, no values."""

    gradients: dict[str, Gradient] = field(default_factory=dict)
    """As backward left them."""
    entering: dict[str, float] = field(default_factory=dict)
    """The norm of each gradient in the moment the optimizer takes it: after unscaling, clipping and the like."""
    twice: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The norm of each gradient of a step that was computed a second time: of the first and of the second."""
    updates: dict[str, float] = field(default_factory=dict)
    """By how much each parameter was moved."""
    dtypes: dict[str, str] = field(default_factory=dict)
    weight_norm: float = 0.0
    largest: dict[str, float] = field(default_factory=dict)
    """The largest magnitude of each parameter before the step."""
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """A few entries of each parameter before the step: they show what was written between two steps."""
    samples_after: dict[str, tuple[float, ...]] = field(default_factory=dict)
    bad_before: list[tuple[str, str]] = field(default_factory=list)
    bad_after: list[tuple[str, str]] = field(default_factory=list)

    has_optimizer: bool = False
    trainable: tuple[str, ...] = ()
    held: frozenset[str] = frozenset()
    """Trainable parameters of the model that an optimizer holds."""
    rated: frozenset[str] = frozenset()
    """Parameters in a group whose learning rate is above zero."""
    strays: tuple[str, ...] = ()
    """Parameters that neither the model nor an optimizer knows, and that have a gradient."""
    written: frozenset[str] = frozenset()
    """Parameters of which nearly every entry is another one than the step before had left there."""
    followers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Half-precision weights that need no gradient: the version of each and a checksum of its bits."""
    entry_sizes: dict[str, int] = field(default_factory=dict)
    """How many numbers each entry of the batch has."""
    entry_peaks: dict[str, float] = field(default_factory=dict)
    """The largest magnitude in each entry of the batch."""

    @property
    def loss(self) -> float:
        return self.terms.get("loss", next(iter(self.terms.values()), 0.0))

    @property
    def loss_finite(self) -> bool:
        return all(math.isfinite(value) for value in self.terms.values())

    @property
    def bad_gradients(self) -> list[str]:
        return [name for name, gradient in self.gradients.items() if gradient.present and not gradient.finite]

    @property
    def bad_entering(self) -> list[str]:
        """Gradients that were finite after backward and not when the optimizer took them."""
        if self.bad_gradients:
            return []
        return [name for name, norm in self.entering.items() if not math.isfinite(norm)]

    @property
    def update_norm(self) -> float:
        return math.hypot(*self.updates.values())

    @property
    def grad_norm(self) -> float:
        return math.hypot(*(gradient.norm for gradient in self.gradients.values() if gradient.present))

    @property
    def finite(self) -> bool:
        """Loss, gradients and everything after the step."""
        return self.loss_finite and not self.bad_gradients and not self.bad_entering and not self.bad_after

    @property
    def uses_fp16(self) -> bool:
        """Whether anything in forward or any weight is in float16, whose gradients flush to zero below 6e-8."""
        dtypes = {seen.dtype for seen in self.activations} | {tensor.dtype for tensor in self.tensors}
        return "float16" in dtypes

    @property
    def loudest(self) -> float:
        """The largest gradient of all sampled ones; the measure of what is a small one."""
        return max((tensor.grad_absmax for tensor in self.tensors), default=0.0)

    def gradient_norm(self, name: str) -> float:
        """The norm of one gradient after backward; zero where there is none, infinite where it is not finite."""
        gradient = self.gradients.get(name)
        if gradient is None or not gradient.present:
            return 0.0
        return gradient.norm if math.isfinite(gradient.norm) else math.inf

    def bad_of(self, kind: str) -> tuple[str, ...]:
        """What of this kind ("parameter", "optimizer", "buffer") was non-finite after the step."""
        return tuple(name for found, name in self.bad_after if found == kind)

    def reading(self) -> Reading:
        """The numbers by which the detectors of a live step judge it. Without the loss scale: whether an overflow is
        the scaler's is another question."""
        given = [gradient for gradient in self.gradients.values() if gradient.present]
        return Reading(
            step=self.step,
            loss=self.loss,
            terms=self.terms,
            grad_norm=self.grad_norm,
            norms=[gradient.norm for gradient in given],
            names=[gradient.name for gradient in given],
            lr=self.rate,
            bad_parameters=self.bad_of("parameter"),
            bad_state=self.bad_of("optimizer"),
            bad_buffers=self.bad_of("buffer"),
        )


def owner(name: str) -> str:
    """The module that owns a parameter."""
    return name.rpartition(".")[0]


def reached(observed: StepObservation) -> list[str]:
    """The parameters that came to the optimizer with a gradient."""
    return [name for name in observed.updates if observed.entering.get(name, 0.0) > 0]


def written_between(before: StepObservation, now: StepObservation) -> frozenset[str]:
    """Parameters that were written between two steps: nearly all sampled entries differ from what the step left."""
    found = set()
    for name, then in before.samples_after.items():
        values = now.samples.get(name)
        if values is None or len(values) != len(then):
            continue
        if sum(a != b for a, b in zip(values, then, strict=True)) > 0.9 * len(then):
            found.add(name)
    return frozenset(found)


def allowed_growth(before: StepObservation, now: StepObservation) -> float:
    """How much higher a loss may be only because the batch is larger: a sum grows with its terms, and a sum over
    pairs with their square. One where the batch is as it was."""
    both = [key for key in now.entry_sizes if before.entry_sizes.get(key)]
    growth = max((now.entry_sizes[key] / before.entry_sizes[key] for key in both), default=1.0)
    return growth**2 if growth >= 2 else max(growth, 1.0)
