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
    "Board": "published_findings",
    "NumericalStabilityLogitsProcessor": "generation",
    "PolicyLoss": "losses.policy_gradient",
    "TemperatureLogitsWarper": "generation",
    "board": "published_findings",
    "bound_logits": "logit_bounds",
    "bound_loss": "logit_bounds",
    "cosine_loss": "losses.latent",
    "dice_loss": "losses.segmentation_masks",
    "distillation_loss": "losses.distillation",
    "group_advantages": "losses.policy_gradient",
    "latent_mse": "losses.latent",
    "mask_bce_loss": "losses.segmentation_masks",
    "masked_cross_entropy": "losses.cross_entropy",
    "masked_mean": "masked_means",
    "normalised_mse": "losses.latent",
    "policy_gradient_loss": "losses.policy_gradient",
    "safe_normalise": "losses.latent",
    "soft_cap_logits": "logit_bounds",
    "z_loss": "losses.cross_entropy",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .generation import NumericalStabilityLogitsProcessor as NumericalStabilityLogitsProcessor
    from .generation import TemperatureLogitsWarper as TemperatureLogitsWarper
    from .logit_bounds import bound_logits as bound_logits
    from .logit_bounds import bound_loss as bound_loss
    from .logit_bounds import soft_cap_logits as soft_cap_logits
    from .losses.cross_entropy import masked_cross_entropy as masked_cross_entropy
    from .losses.cross_entropy import z_loss as z_loss
    from .losses.distillation import distillation_loss as distillation_loss
    from .losses.latent import cosine_loss as cosine_loss
    from .losses.latent import latent_mse as latent_mse
    from .losses.latent import normalised_mse as normalised_mse
    from .losses.latent import safe_normalise as safe_normalise
    from .losses.policy_gradient import PolicyLoss as PolicyLoss
    from .losses.policy_gradient import group_advantages as group_advantages
    from .losses.policy_gradient import policy_gradient_loss as policy_gradient_loss
    from .losses.segmentation_masks import dice_loss as dice_loss
    from .losses.segmentation_masks import mask_bce_loss as mask_bce_loss
    from .masked_means import masked_mean as masked_mean
    from .published_findings import Board as Board
    from .published_findings import board as board


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
