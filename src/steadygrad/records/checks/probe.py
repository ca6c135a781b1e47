"""What a probe of a model's ranges gave: every module, every dtype, and what happened when the step was run in it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a module's numbers sit in a dtype.

    Headroom is in bits: how often the largest magnitude can double before it overflows; negative if it already has.
    Underflow is the share of the numbers other than zero that become zero. Gradients of float16 are counted under the
    loss scale of the probe, numbers of 8-bit floats under a scale for each tensor, as they are used.
    """

    headroom: float | None = None
    grad_headroom: float | None = None
    underflow: float = 0.0
    grad_underflow: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRange:
    """The magnitudes of what a module gave out in one step, and of the gradients that came back to it."""

    name: str
    kind: str
    dtype: str = "float32"
    smallest: float | None = None
    largest: float | None = None
    grad_smallest: float | None = None
    grad_largest: float | None = None
    num_elements: int = 0
    num_bad: int = 0
    fits: dict[str, Fit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTrial:
    """The step, run in an 8-bit float with its scales chosen in another way.

    `scale` is "delayed", from the largest magnitudes of earlier batches, or "blocks of 32", which share a power of two
    (MXFP8).
    """

    scale: str
    fits: bool
    because: str
    gradient_cosine: float | None = None
    vanished: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionTrial:
    """The step, really run in a precision, beside the step as it is.

    `wider` are the modules that need a wider type; `fits_with_wider` is whether the step is fit with those left in
    float32, None where that was not needed. An 8-bit float is run with a scale for each tensor, from its own largest
    magnitude; `scales` are other ways to choose them.
    """

    dtype: str
    fits: bool
    because: str
    emulated: bool = False
    loss: float | None = None
    loss_scale: float | None = None
    gradient_cosine: float | None = None
    vanished: float | None = None
    wider: tuple[str, ...] = ()
    fits_with_wider: bool | None = None
    scales: tuple[ScaleTrial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One step of a model, seen through every dtype."""

    loss: float
    modules: tuple[ModuleRange, ...] = ()
    trials: tuple[PrecisionTrial, ...] = ()
    num_parameters: int = 0
    notes: tuple[str, ...] = ()

    @property
    def fit(self) -> bool:
        """Whether the step is finite as it is and in every dtype it was run in."""
        return all(trial.fits for trial in self.trials)
