"""How the numbers of a layer are scaled before they are rounded to an 8-bit float, as libraries do it.

Per tensor, from its own largest magnitude (current) or from what it was in earlier batches (delayed); or per block of
32 numbers that share a power of two (MXFP8). What lies above the end of the format after scaling becomes its largest
number, as in the kernels of those libraries, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .dtype_ranges import FORMATS, Format

MULTIPLIES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.Bilinear)
BLOCK = 32
SMALLEST_EXPONENT = -127
"""Of the scale that a block shares: it has eight bits and no sign."""

Place = tuple[str, str]
"""A module, and which of its tensors: "inputs", "weights" or "gradients"."""


class Scaling(Protocol):
    """Rounds a tensor to an 8-bit float and back, under a scale that it chooses."""

    def rounded(self, tensor: Tensor, form: Format, place: Place) -> Tensor: ...


class CurrentScale:
    """One power of two for each tensor, which brings its largest magnitude just under the end of the format."""

    def rounded(self, tensor: Tensor, form: Format, place: Place) -> Tensor:
        top = _largest(tensor)
        if not (math.isfinite(top) and top > 0.0):
            return tensor
        scale = 2.0 ** math.floor(math.log2(form.largest / top))
        return (tensor * scale).to(form.torch_dtype).to(tensor.dtype) / scale


class AmaxHistory:
    """Rounds nothing, and notes the largest magnitude of every tensor over all batches."""

    def __init__(self) -> None:
        self.largest: dict[Place, float] = {}

    def rounded(self, tensor: Tensor, form: Format, place: Place) -> Tensor:
        top = _largest(tensor)
        before = self.largest.get(place, 0.0)
        self.largest[place] = top if math.isnan(top) else max(before, top)
        return tensor

    @property
    def unusable(self) -> dict[Place, float]:
        """Where the history gives no scale: nothing but zeros was seen, so that it would be infinite; or a number that
        is not finite, so that it would be zero or NaN from then on."""
        return {place: top for place, top in self.largest.items() if not (0.0 < top < math.inf)}


class DelayedScale:
    """One scale for each tensor, from the largest magnitude that it had in earlier batches. Without one, 1."""

    def __init__(self, history: AmaxHistory) -> None:
        self._largest = history.largest
        self.clipped: dict[Place, int] = {}
        """How many numbers lay above the end of the format."""

    def rounded(self, tensor: Tensor, form: Format, place: Place) -> Tensor:
        if not math.isfinite(_largest(tensor)):
            return tensor
        top = self._largest.get(place, 0.0)
        scale = 1.0 if top == 0.0 else form.largest / top
        scaled = tensor.detach().double() * scale
        above = int((scaled.abs() > form.largest).sum())
        if above:
            self.clipped[place] = self.clipped.get(place, 0) + above
        return (_cast(scaled, form) / scale).to(tensor.dtype)


class BlockScale:
    """One power of two for every 32 neighbours of the last dimension, or, of a convolution's weights, of all that one
    output channel sums over. By the rule of the OCP Microscaling formats it is that of the largest of them, less the
    largest power of two of the format."""

    def rounded(self, tensor: Tensor, form: Format, place: Place) -> Tensor:
        if not tensor.dim() or not tensor.numel() or not math.isfinite(_largest(tensor)):
            return tensor
        rows = tensor.detach().flatten(1) if place[1] == "weights" and tensor.dim() > 2 else tensor.detach()
        size = rows.shape[-1]
        wide = nn.functional.pad(rows.double(), (0, -size % BLOCK))
        blocks = wide.reshape(*wide.shape[:-1], -1, BLOCK)
        top = blocks.abs().amax(-1, keepdim=True)
        exponent = torch.frexp(top).exponent - 1 - math.floor(math.log2(form.largest))
        scale = torch.exp2(exponent.clamp(SMALLEST_EXPONENT, -SMALLEST_EXPONENT).double())
        return (
            (_cast(blocks / scale, form) * scale).reshape(wide.shape)[..., :size].reshape(tensor.shape).to(tensor.dtype)
        )


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def _cast(scaled: Tensor, form: Format) -> Tensor:
    """To the 8-bit float and back, with its largest number for what lies above it."""
    return scaled.clamp(-form.largest, form.largest).float().to(form.torch_dtype).double()


@contextmanager
def rounded_layers(
    model: nn.Module, form: Format, wider: Sequence[str], scaling: Scaling, backward: Format | None = None
) -> Iterator[None]:
    """Linear and convolution layers see their inputs, weights and gradients through an 8-bit float."""
    back = backward or FORMATS["fp8_e5m2"]
    handles: list[Any] = []
    weights: list[tuple[str, Tensor, Tensor]] = []

    def hook(name: str, module: nn.Module) -> None:
        def before(module: nn.Module, args: Any) -> Any:
            first = args[0] if args and isinstance(args[0], Tensor) else None
            if first is None or not first.is_floating_point():
                return None
            # Rounding has no useful derivative: the gradient passes as if nothing had been rounded.
            rough = scaling.rounded(first.detach(), form, (name, "inputs"))
            return (first + (rough - first.detach()), *args[1:])

        def after(module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and out.requires_grad:
                out.register_hook(lambda gradient: scaling.rounded(gradient, back, (name, "gradients")))  # type: ignore[no-untyped-call]

        handles.extend([module.register_forward_pre_hook(before), module.register_forward_hook(after)])

    for name, module in model.named_modules():
        if isinstance(module, MULTIPLIES) and name not in wider:
            hook(name, module)
            weights.append((name, module.weight, module.weight.detach().clone()))
    with torch.no_grad():
        for name, weight, kept in weights:
            weight.data.copy_(scaling.rounded(kept, form, (name, "weights")))
    try:
        yield
    finally:
        with torch.no_grad():
            for _, weight, kept in weights:
                weight.data.copy_(kept)
        for handle in handles:
            handle.remove()
