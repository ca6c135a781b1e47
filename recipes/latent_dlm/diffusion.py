"""The noise: words are hidden, latents drown, and each row of a batch has a mode.

Time 0 is clean and 1 is nothing but noise, for text and latent apart. Everything here is in float32 on purpose: a time
rounded to bfloat16 is exactly 1 in one of 510 draws, where the logarithms of such schedules have their poles.

Shapes: B rows, T tokens, Z entries of a latent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .corpus import MASK_ID

LEAST_TIME = 1e-3
# How rows are shared out in mode `random`: both from noise, text from latent, latent from text, and any two times.
SHARES = (0.25, 0.35, 0.2, 0.2)


@dataclass(frozen=True)
class Noised:
    """What the model is shown, and what it shall say."""

    tokens_BT: Tensor
    latent_BZ: Tensor
    t_text_B: Tensor
    t_latent_B: Tensor
    hidden_BT: Tensor
    """True where a word was hidden."""
    latent_target_BZ: Tensor
    latent_counts_B: Tensor
    """True where the row has a noisy latent to be learnt from."""


def cosine_schedule(t_B: Tensor) -> tuple[Tensor, Tensor]:
    """How much of signal and of noise there is: their squares add up to one."""
    angle_B = t_B.float() * (math.pi / 2)
    return angle_B.cos().clamp(min=0.0), angle_B.sin()


def latent_target(prediction: str, latent_BZ: Tensor, noise_BZ: Tensor, t_B: Tensor) -> Tensor:
    """epsilon: the noise. velocity: how the noisy latent moves along the circle of the cosine schedule."""
    if prediction == "epsilon":
        return noise_BZ
    signal_B, noise_B = cosine_schedule(t_B)
    return signal_B[:, None] * noise_BZ - noise_B[:, None] * latent_BZ


def clean_and_noise(prediction: str, said_BZ: Tensor, noisy_BZ: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor]:
    """The clean latent and the noise that a prediction implies.

    From epsilon the clean latent is a quotient by the signal, which is zero at time 1: the divisor has a floor.
    """
    signal_B1, noise_B1 = (each[:, None] for each in cosine_schedule(t_B))
    if prediction == "epsilon":
        return (noisy_BZ - noise_B1 * said_BZ) / signal_B1.clamp(min=LEAST_TIME), said_BZ
    return signal_B1 * noisy_BZ - noise_B1 * said_BZ, noise_B1 * noisy_BZ + signal_B1 * said_BZ


def spread_times(size: int, device: torch.device, generator: Generator | None) -> Tensor:
    """Times in [LEAST_TIME, 1 - LEAST_TIME), one in each of `size` equal parts: less chance from batch to batch."""
    offset = torch.rand(1, device=device, generator=generator)
    even_B = (torch.arange(size, device=device) / size + offset) % 1.0
    order = torch.rand(size, device=device, generator=generator).argsort()
    return LEAST_TIME + (1 - 2 * LEAST_TIME) * even_B[order]


def draw_times(mode: str, size: int, device: torch.device, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """The times of text and latent for each row of a batch. Never waits for the device."""
    t_B = spread_times(size, device, generator)
    zero_B = torch.zeros_like(t_B)
    match mode:
        case "unconditional":
            return t_B, t_B
        case "latent_to_text":
            return t_B, zero_B
        case "text_to_latent":
            return zero_B, t_B
    other_B = spread_times(size, device, generator)
    kind_B = torch.rand(size, device=device, generator=generator)
    both, to_text, to_latent, _ = SHARES
    t_text_B = torch.where((kind_B >= both + to_text) & (kind_B < both + to_text + to_latent), zero_B, t_B)
    t_latent_B = torch.where(kind_B < both, t_B, torch.where(kind_B < both + to_text, zero_B, other_B))
    return t_text_B, t_latent_B


def add_noise(
    tokens_BT: Tensor,
    latent_BZ: Tensor,
    t_text_B: Tensor,
    t_latent_B: Tensor,
    prediction: str,
    generator: Generator | None = None,
) -> Noised:
    """Hide each word with the probability of its row's time, and mix noise into the latent. Never waits."""
    device = tokens_BT.device
    chance_BT = torch.rand(tokens_BT.shape, device=device, generator=generator)
    hidden_BT = chance_BT < t_text_B[:, None]
    noise_BZ = torch.randn(latent_BZ.shape, device=device, generator=generator)
    signal_B, share_B = cosine_schedule(t_latent_B)
    return Noised(
        tokens_BT=torch.where(hidden_BT, MASK_ID, tokens_BT),
        latent_BZ=signal_B[:, None] * latent_BZ + share_B[:, None] * noise_BZ,
        t_text_B=t_text_B,
        t_latent_B=t_latent_B,
        hidden_BT=hidden_BT,
        latent_target_BZ=latent_target(prediction, latent_BZ, noise_BZ, t_latent_B),
        latent_counts_B=t_latent_B > 0,
    )
