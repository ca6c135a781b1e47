"""Sampling: words are uncovered one after another, latents are walked from noise to a point, alone or together.

Shapes: B rows, T tokens, V vocabulary, Z entries of a latent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from .config import Config
from .corpus import MASK_ID
from .diffusion import LEAST_TIME, clean_and_noise, cosine_schedule

FARTHEST = 6.0  # standardised latents lie within; the quotient of epsilon prediction does not know that near time 1


@dataclass(frozen=True, kw_only=True)
class How:
    """The settings of a sampler."""

    steps: int = 32
    temperature: float = 0.7
    top_p: float = 0.95
    guidance: float = 1.0
    """How far to go from what the model says without the latent towards what it says with it, and past it above 1."""


class Sampler:
    """Draws from a trained model. The same seed gives the same samples on the same machine."""

    def __init__(self, model: nn.Module, config: Config, device: str = "cpu", *, seed: int = 0) -> None:
        self.model, self.config, self.device = model.eval(), config, torch.device(device)
        self.generator = Generator(device=self.device).manual_seed(seed)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=config.training.dtype != "fp32")

    @torch.no_grad()
    def text_from_latent(self, latent_BZ: Tensor, how: How | None = None) -> Tensor:
        """Tokens (B, T) for standardised latents."""
        return self._sample(latent_BZ.to(self.device), True, how or How())[0]

    @torch.no_grad()
    def unconditional(self, size: int, how: How | None = None) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) and latents (B, Z) out of nothing, made together."""
        return self._sample(self._noise(size), False, how or How())

    @torch.no_grad()
    def latent_from_text(self, tokens_BT: Tensor, how: How | None = None) -> Tensor:
        """Standardised latents (B, Z) for tokens, by the deterministic walk of DDIM."""
        steps = (how or How()).steps
        tokens_BT = tokens_BT.to(self.device)
        noisy_BZ = self._noise(len(tokens_BT))
        clean_B = torch.zeros(len(tokens_BT), device=self.device)
        for now, then in _walk(steps):
            _, said_BZ = self._ask(tokens_BT, noisy_BZ, clean_B, torch.full_like(clean_B, now))
            noisy_BZ = self._walked(said_BZ, noisy_BZ, now, then)
        return noisy_BZ

    def _sample(self, latent_BZ: Tensor, given: bool, how: How) -> tuple[Tensor, Tensor]:
        size, length = len(latent_BZ), self.config.data.seq_len
        tokens_BT = torch.full((size, length), MASK_ID, device=self.device)
        # Words are uncovered in a random order of each row's own, an equal number in every step.
        order_BT = torch.rand(size, length, device=self.device, generator=self.generator).argsort(1).argsort(1)
        steps = min(how.steps, length)
        for step, (now, then) in enumerate(_walk(steps)):
            t_B = torch.full((size,), now, device=self.device)
            logits_BTV, said_BZ = self._ask(tokens_BT, latent_BZ, t_B, torch.zeros_like(t_B) if given else t_B)
            if given and how.guidance != 1.0:
                alone_BTV, _ = self._ask(tokens_BT, self._noise(size), t_B, torch.full_like(t_B, 1 - LEAST_TIME))
                logits_BTV = alone_BTV + how.guidance * (logits_BTV - alone_BTV)
            due_BT = (order_BT < length * (step + 1) // steps) & (tokens_BT == MASK_ID)
            tokens_BT = torch.where(due_BT, self._words(logits_BTV, how), tokens_BT)
            if not given:
                latent_BZ = self._walked(said_BZ, latent_BZ, now, then)
        return tokens_BT, latent_BZ

    def _ask(self, tokens_BT: Tensor, latent_BZ: Tensor, t_text_B: Tensor, t_latent_B: Tensor) -> tuple[Tensor, Tensor]:
        with self.autocast:
            logits_BTV, said_BZ = self.model(tokens_BT, latent_BZ, t_text_B, t_latent_B)
        return logits_BTV.float(), said_BZ.float()

    def _words(self, logits_BTV: Tensor, how: How) -> Tensor:
        logits_BTV = logits_BTV / max(how.temperature, 1e-2)
        logits_BTV[..., MASK_ID] = -torch.inf
        odds_BTV = logits_BTV.softmax(-1)
        sorted_BTV, places_BTV = odds_BTV.sort(-1, descending=True)
        # A token is kept while those before it have less than top_p of the mass: the first one always is.
        before_BTV = sorted_BTV.cumsum(-1) - sorted_BTV
        sorted_BTV = sorted_BTV.masked_fill(before_BTV >= how.top_p, 0.0)
        drawn = torch.multinomial(sorted_BTV.flatten(0, 1), 1, generator=self.generator)
        return places_BTV.gather(-1, drawn.view(*odds_BTV.shape[:2], 1)).squeeze(-1)

    def _walked(self, said_BZ: Tensor, noisy_BZ: Tensor, now: float, then: float) -> Tensor:
        t_B = torch.full((len(noisy_BZ),), now, device=self.device)
        clean_BZ, _ = clean_and_noise(self.config.latent.prediction, said_BZ, noisy_BZ, t_B)
        clean_BZ = clean_BZ.clamp(-FARTHEST, FARTHEST)
        signal_B1, share_B1 = (each[:, None] for each in cosine_schedule(t_B))
        # The noise that goes with the clamped point, so that the two still make up the noisy one.
        noise_BZ = (noisy_BZ - signal_B1 * clean_BZ) / share_B1.clamp(min=LEAST_TIME)
        next_signal_B1, next_share_B1 = (each[:, None] for each in cosine_schedule(torch.full_like(t_B, then)))
        return next_signal_B1 * clean_BZ + next_share_B1 * noise_BZ

    def _noise(self, size: int) -> Tensor:
        return torch.randn(size, self.config.latent.dim, device=self.device, generator=self.generator)


def _walk(steps: int) -> list[tuple[float, float]]:
    """Pairs of times from all noise to none."""
    times = [(1 - LEAST_TIME) * (steps - step) / steps for step in range(steps)] + [0.0]
    return list(itertools.pairwise(times))
