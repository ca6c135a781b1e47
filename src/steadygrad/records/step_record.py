"""What was measured in one step: the reading (just measured) and the record (settled and journaled)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .finding_and_decision import Finding

HOST_MEMORY, GPU_MEMORY, GPU_MEMORY_PEAK = "host_memory_bytes", "gpu_memory_bytes", "gpu_memory_peak_bytes"
"""Sampled memory stands among the terms of some steps: the process's, its fullest GPU's, and that one's most so far."""
MEMORY = (HOST_MEMORY, GPU_MEMORY, GPU_MEMORY_PEAK)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Plain numbers read off the device for one step. Detectors see this and never a tensor. Without slots, so that
    one of each step can be made by filling its dictionary, several times faster than by its fields.

    `norms[i]` is the gradient norm before clipping of the tensor called `names[i]`; `grad_norm` is their total.
    `loss` is unscaled. A non-finite `grad_norm` from finite `norms` is an overflow of the norm, not of a gradient.
    """

    step: int
    loss: float
    terms: dict[str, float] = field(default_factory=dict)
    grad_norm: float = 0.0
    norms: Sequence[float] = ()
    names: Sequence[str] = ()
    lr: float = 0.0
    loss_scale: float | None = None
    micro_losses: Sequence[float] = ()
    refused: bool = False
    batch_key: str | None = None
    rank: int = 0
    grad_norm_limit: float | None = None
    """What the device compared `grad_norm` with at this step; None: ask the history."""
    loss_limit: float | None = None
    gradients_finite: bool | None = None
    """True if a second look found every gradient finite although a norm is not; None: not checked."""
    bad_parameters: tuple[str, ...] = ()
    bad_state: tuple[str, ...] = ()
    bad_buffers: tuple[str, ...] = ()
    """These three are non-finite in what the step started from or would leave behind: skipping does not cure them."""
    bad_inputs: tuple[str, ...] = ()
    bad_options: tuple[str, ...] = ()
    """Options of the optimizer that are no finite numbers, each with its value: "the learning rate is nan"."""
    undone: bool = False
    """The update made something non-finite and was undone to the bit at once: nothing bad is left behind."""
    scale_to_blame: bool | None = None
    """Whether the step is finite with a loss scale of one: then the scale was too large; None: not tried."""
    num_ranks: int = 1
    """With more than one, `loss`, `terms` and `micro_losses` are means over the ranks: what all of them judge by."""
    local_loss: float | None = None
    """This rank's own loss, where there are several ranks."""
    bad_ranks: tuple[int, ...] = ()
    """Ranks on which something was bad before it was reduced over all of them; `rank` is the first."""
    rank_losses: tuple[float, ...] = ()
    """Every rank's own loss, gathered when a step was refused."""
    posted: tuple[Finding, ...] = ()
    """What others found out since the last step: a logits processor that had to repair what it was given, say."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One settled step, one row of the journal. Without slots, as a reading."""

    run: str
    step: int
    attempt: int = 0
    rank: int = 0
    time: float = 0.0
    batch_key: str | None = None
    loss: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    grad_norm: float = 0.0
    norms: Sequence[float] = ()
    lr: float = 0.0
    loss_scale: float | None = None
    applied: bool = True
    rung: int = 0
    flags: tuple[str, ...] = ()
