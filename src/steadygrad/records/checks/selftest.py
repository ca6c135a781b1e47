"""What a self-test of a set-up gave: ten steps, what was checked of them, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestStep:
    """One of the steps. `update_ratio` is the norm of what the step changed over the norm of the weights."""

    step: int
    loss: float
    grad_norm: float
    update_ratio: float | None = None
    loss_scale: float | None = None
    landed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestCheck:
    """One question and its answer: pass, doubt or fail."""

    name: str
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selftest:
    """`verdict` is fit, doubtful or unfit: the worst of the checks."""

    verdict: str
    checks: tuple[SelftestCheck, ...] = ()
    steps: tuple[SelftestStep, ...] = ()
    precision: str = "fp32"
    num_parameters: int = 0
    num_trainable: int = 0
    notes: tuple[str, ...] = ()

    @property
    def fit(self) -> bool:
        """Nothing failed and nothing is in doubt."""
        return self.verdict == "fit"
