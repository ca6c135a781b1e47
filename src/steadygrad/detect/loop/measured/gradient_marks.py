"""Whether gradients were cleared, replaced or added to, known by the objects and their version counters.

A few parameters stand for all. Nothing is read from a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

MOST = 8


class Mark(NamedTuple):
    """A gradient at one moment."""

    gradient: TensorWeakRef
    version: int
    nonzero: bool = False
    """Known to have had a value other than zero: looked at for the smallest gradient in host memory."""

    def is_still(self, gradient: Tensor | None) -> bool:
        """Whether this is the same gradient, and it was not written to since."""
        return gradient is not None and gradient._version == self.version and self.gradient() is gradient

    def is_object(self, gradient: Tensor | None) -> bool:
        return gradient is not None and self.gradient() is gradient


Marks = tuple[Mark | None, ...]


class GradientMarks:
    """The gradients of some parameters of an optimizer. Keeps none of them alive."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = [TensorWeakRef(parameter) for parameter in parameters]

    def gradients(self) -> list[Tensor | None]:
        parameters = [reference() for reference in self._parameters]
        return [None if parameter is None else parameter.grad for parameter in parameters]

    def take(self, *, values: bool = False) -> Marks:
        """The gradients as they are now; with `values` the smallest one in host memory is read."""
        looked_at = self.smallest() if values else None
        return tuple(
            [
                None
                if gradient is None
                else Mark(TensorWeakRef(gradient), gradient._version, gradient is looked_at and _has_values(gradient))
                for gradient in self.gradients()
            ]
        )

    def unchanged(self, marks: Marks) -> bool:
        """Whether every gradient that was there is still there, as it was; False where there was none."""
        there = [
            mark.is_still(gradient) for mark, gradient in zip(marks, self.gradients(), strict=True) if mark is not None
        ]
        return bool(there) and all(there)

    def cleared(self, marks: Marks) -> bool:
        """Whether every gradient that was there is gone, or was written to and is zero; False where there was none."""
        there = [(mark, g) for mark, g in zip(marks, self.gradients(), strict=True) if mark is not None]
        if not there or any(mark.is_still(gradient) for mark, gradient in there):
            return False
        kept = [(mark, gradient) for mark, gradient in there if gradient is not None]
        known = [gradient for mark, gradient in kept if mark.nonzero]
        return not kept or (bool(known) and not any(_has_values(gradient) for gradient in known))

    def replaced(self, marks: Marks) -> bool:
        """Whether another tensor stands in the place of a gradient."""
        pairs = zip(marks, self.gradients(), strict=True)
        return any(mark and gradient is not None and not mark.is_object(gradient) for mark, gradient in pairs)

    def added_to(self, marks: Marks) -> frozenset[int]:
        """The places of the gradients that are new or were written to."""
        pairs = enumerate(zip(marks, self.gradients(), strict=True))
        return frozenset(
            [
                place
                for place, (mark, gradient) in pairs
                if gradient is not None and (mark is None or not mark.is_still(gradient))
            ]
        )

    def any_added_to(self, marks: Marks) -> bool:
        """Whether there is such a one."""
        for mark, reference in zip(marks, self._parameters, strict=True):
            gradient = None if (parameter := reference()) is None else parameter.grad
            if gradient is not None and (mark is None or not mark.is_still(gradient)):
                return True
        return False

    def all_zero(self) -> bool:
        """Whether every gradient is there and in host memory, and none has a value other than zero."""
        there = self.gradients()
        return bool(there) and not any(g is None or g.device.type != "cpu" or _has_values(g) for g in there)

    def smallest(self) -> Tensor | None:
        """The gradient with the fewest elements, to be compared with itself later."""
        there = [gradient for gradient in self.gradients() if gradient is not None and not gradient.is_sparse]
        return min(there, key=Tensor.numel, default=None)


def _has_values(gradient: Tensor) -> bool:
    """Whether a gradient in host memory has a value other than zero."""
    return gradient.device.type == "cpu" and gradient.layout is torch.strided and bool(gradient.any())


def spread(parameters: Sequence[Tensor], most: int = MOST) -> list[Tensor]:
    """Trainable parameters, evenly chosen from the first to the last."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if len(trainable) <= most:
        return trainable
    return [trainable[place * (len(trainable) - 1) // (most - 1)] for place in range(most)]
