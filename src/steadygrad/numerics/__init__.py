"""Stable parts that can be used alone: losses, bounds, logits processors for `generate`.

    import steadygrad as sg
    loss = sg.numerics.masked_cross_entropy(logits, labels)

One promise runs through all of them. What is masked out never leaks: a NaN at a place that does not count reaches
neither the loss nor the gradient. What counts is never hidden: a NaN at a place that does count stays a NaN, so that
whoever watches the run sees it. Losses come back in float32 (float64 for float64 inputs), whatever came in.

Names are resolved when first used: importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Board": "notice_board",
    "NumericalStabilityLogitsProcessor": "generation",
    "PolicyLoss": "policy",
    "TemperatureLogitsWarper": "generation",
    "board": "notice_board",
    "bound_logits": "bounds",
    "bound_loss": "bounds",
    "cosine_loss": "latent",
    "dice_loss": "masks",
    "distillation_loss": "distillation",
    "group_advantages": "policy",
    "latent_mse": "latent",
    "mask_bce_loss": "masks",
    "masked_cross_entropy": "cross_entropy",
    "masked_mean": "means",
    "normalised_mse": "latent",
    "policy_gradient_loss": "policy",
    "safe_normalise": "latent",
    "soft_cap_logits": "bounds",
    "z_loss": "cross_entropy",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .bounds import bound_logits as bound_logits
    from .bounds import bound_loss as bound_loss
    from .bounds import soft_cap_logits as soft_cap_logits
    from .cross_entropy import masked_cross_entropy as masked_cross_entropy
    from .cross_entropy import z_loss as z_loss
    from .distillation import distillation_loss as distillation_loss
    from .generation import NumericalStabilityLogitsProcessor as NumericalStabilityLogitsProcessor
    from .generation import TemperatureLogitsWarper as TemperatureLogitsWarper
    from .latent import cosine_loss as cosine_loss
    from .latent import latent_mse as latent_mse
    from .latent import normalised_mse as normalised_mse
    from .latent import safe_normalise as safe_normalise
    from .masks import dice_loss as dice_loss
    from .masks import mask_bce_loss as mask_bce_loss
    from .means import masked_mean as masked_mean
    from .notice_board import Board as Board
    from .notice_board import board as board
    from .policy import PolicyLoss as PolicyLoss
    from .policy import group_advantages as group_advantages
    from .policy import policy_gradient_loss as policy_gradient_loss


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
