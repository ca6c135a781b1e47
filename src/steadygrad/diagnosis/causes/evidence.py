"""What the judges see: plain data about one failing step. Causes are functions of this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ...records import TensorDigest

FP16_MAX = 65504.0
FLOAT32_MAX = 3.4e38
FP16_TINY = 5.96e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A weight, buffer or moment that someone changed between the last step and this one."""

    kind: str
    name: str
    num_changed: int
    num_elements: int
    absmax_before: float
    absmax_after: float
    non_finite_after: bool = False
    out_of_range: bool = False
    """Whether values came in that lie far outside what the tensor held before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """What the origin's own tensors show, at the places where the bad value came out."""

    argument_zero: bool = False
    argument_negative: bool = False
    argument_at_edge: bool = False
    scalar_base: bool = False
    """A plain number raised to the power of a tensor."""
    denominator_zero: bool = False
    incoming_zero: bool = False
    zeroed_by_mask: bool = False
    masked_row: bool = False
    num_reduced: int | None = None
    float64_finite: bool | None = None
    float64_absmax: float = 0.0
    float32_finite: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything known about the failing step, in names and numbers."""

    symptom: str
    kind: str = "non_finite"
    phase: str = "none"
    step: int = 0
    op: str | None = None
    call: str = ""
    born_in: str | None = None
    backward: bool = False
    stage: str = "forward"
    leaf: tuple[str, str] | None = None
    number: float | None = None
    """A number that is NaN or infinite and that the program gave the origin: a weight of the loss, say."""
    is_nan: bool = True
    dtype: str = ""
    inputs: tuple[TensorDigest, ...] = ()
    outputs: tuple[TensorDigest, ...] = ()
    facts: OpFacts = OpFacts()
    intended_infinities: bool = False
    mask_reached_loss: bool = False
    """An infinity that was written on purpose, to mask something, is what the loss is made of."""
    masks_come_from_log: bool = False
    cancelled: bool = False
    tiny_scalar_in_half: bool = False
    float32_step_finite: bool | None = None
    autocast: str | None = None
    loss_scale: float | None = None
    dynamic_scale: bool = False
    unit_scale_finite: bool | None = None
    losses: tuple[float, ...] = ()
    changes: tuple[StateChange, ...] = ()
    bad_before: tuple[tuple[str, str], ...] = ()
    bad_since_start: bool = False
    huge_state: tuple[str, float, int] | None = None
    batch_outlier: tuple[str, tuple[int, ...], float] | None = None
    reproduced: tuple[int, int] = (1, 1)
    names: tuple[str, ...] = ()
    moments_without_spread: float = 0.0
    gradient_in_float32: bool | None = None
    entering_ratio: float | None = None
    rate: float = 0.0
    lost_eps: float | None = None
    """The eps of an optimizer that is above zero as it was given and zero in the type of the origin."""
    earlier_rate: float | None = None
    discarded_forward: bool = False
    saturated: bool = False
    """Of such a value: it was not thrown away, a function that ends at a finite number has swallowed it."""
    capped: bool = False
    """Of such a value: it was compared with a bound and lost. No one chose beforehand to do without it."""
    bits_written: bool = False
    blew_up: bool = False
    risen: bool = False
    """Of a spike: the failing step began with a loss or gradient out of line, made so by an update before it."""
    plain_backend_finite: bool | None = None
    proved_by: str = ""
    """The slug of the remedy under which the step was finite when the cause was proved."""
    kernel_fails_on: str = ""
    """Of a kernel whose formula is not seen: "zeros", "equals" or "size", by which other numbers it is finite with."""
    compiled: bool = False
    """The step fails again as compiled code and is finite in eager."""

    @property
    def inputs_finite(self) -> bool:
        """Whether what the origin was given is finite. An update writes over what it was given."""
        if self.stage == "commit":
            return not self.bad_before and self.symptom in ("nan_param", "nan_state")
        return not any(d.num_nan or d.num_inf for d in self.inputs)

    @property
    def half(self) -> bool:
        """Whether the origin computed in float16."""
        return self.dtype == "float16"
