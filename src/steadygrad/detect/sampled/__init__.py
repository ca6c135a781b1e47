"""Sampled checks for silent trouble: nothing is non-finite, and still the run does not learn.

`StepSampler` measures on the device at a few steps; one judge a file looks at the plain numbers. The judges import
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sampler import StepSampler as StepSampler

__all__ = ["StepSampler"]


def __getattr__(name: str) -> Any:
    if name == "StepSampler":
        return import_module(f"{__name__}.sampler").StepSampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
