"""What a trained model can do: its losses, and whether text and latent find each other.

Retrieval: a text is sampled from the latent of a held-out sentence, encoded again, and has to lie nearer to that latent
than to the latent of another sentence drawn at random. Chance is one half.

Shapes: B sentences, Z entries of a latent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

import steadygrad as sg

from .config import Config
from .corpus import as_text
from .latents import Encode
from .losses import validate
from .prepared import Prepared
from .sampling import How, Sampler


@dataclass(frozen=True)
class Found:
    """What was measured on held-out sentences."""

    validation: dict[str, float]
    latent_to_text: float
    """Share of sampled texts that lie nearer to their own latent than to a random other one."""
    latent_to_text_cosine: float
    text_to_latent: float
    """Share of sampled latents that lie nearer to their own sentence's than to a random other one."""
    text_to_latent_cosine: float
    sentences: int
    examples: list[tuple[str, str]]
    """Held-out sentences, and what was sampled from their latents alone."""
    unconditional: list[str]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def nearer_to_own(made_BZ: Tensor, own_BZ: Tensor, *, seed: int = 0) -> tuple[float, float]:
    """Share of rows nearer (by cosine) to their own than to another row's, and the mean cosine with their own."""
    made_BZ, own_BZ = (sg.numerics.safe_normalise(each.float().cpu()) for each in (made_BZ, own_BZ))
    size = len(made_BZ)
    step = torch.randint(1, size, (size,), generator=torch.Generator().manual_seed(seed))
    other_BZ = own_BZ[(torch.arange(size) + step) % size]
    near_B, far_B = (made_BZ * own_BZ).sum(1), (made_BZ * other_BZ).sum(1)
    return float((near_B > far_B).float().mean()), float(near_B.mean())


def evaluate(
    model: nn.Module,
    config: Config,
    data: Prepared,
    encode: Encode,
    *,
    device: str = "cpu",
    seed: int = 0,
    sentences: int = 200,
    how: How | None = None,
) -> Found:
    """Validation losses, retrieval both ways and samples, on the first `sentences` of the held-out ones."""
    count = min(sentences, len(data.val))
    rows = torch.linspace(0, len(data.val) - 1, count).long()
    sampler = Sampler(model, config, device, seed=seed)
    own_BZ = data.val.latents_ND[rows.to(data.val.latents_ND.device)]
    tokens_BT = data.val.tokens_NT[rows.to(data.val.tokens_NT.device)]
    texts = [as_text(data.tokenizer, ids) for ids in sampler.text_from_latent(own_BZ, how).tolist()]
    again_BZ = data.scale.standardise(encode(texts))
    to_text, to_text_cosine = nearer_to_own(again_BZ, own_BZ, seed=seed)
    to_latent, to_latent_cosine = nearer_to_own(sampler.latent_from_text(tokens_BT, how), own_BZ, seed=seed)
    free, _ = sampler.unconditional(12, how)
    return Found(
        validation=validate(model, config, data.val),
        latent_to_text=to_text,
        latent_to_text_cosine=to_text_cosine,
        text_to_latent=to_latent,
        text_to_latent_cosine=to_latent_cosine,
        sentences=count,
        examples=[(data.val.sentences[int(row)], text) for row, text in zip(rows, texts, strict=True)][:12],
        unconditional=[as_text(data.tokenizer, ids) for ids in free.tolist()],
    )
