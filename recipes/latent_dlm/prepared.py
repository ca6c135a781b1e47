"""A corpus as tensors: tokens and standardised latents, split, made once and kept in a cache.

Which batch comes at which place is a function of the seed and the place alone, so that a run that is resumed goes on
with the batch it would have had. Shapes: N sentences, B of them in a batch, T tokens, D entries of a latent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from .config import Config
from .corpus import read_sentences, tokenise, train_tokenizer
from .latents import Scale, encoder_folder, make_encoder

Batch = dict[str, Any]
VERSION = 1


@dataclass(frozen=True)
class Split:
    """Sentences with their tokens (N, T) and standardised latents (N, D)."""

    sentences: list[str]
    tokens_NT: Tensor
    latents_ND: Tensor

    def __len__(self) -> int:
        return len(self.sentences)

    def to(self, device: str) -> Split:
        return Split(self.sentences, self.tokens_NT.to(device), self.latents_ND.to(device))

    def batch(self, rows: Tensor, *, noise_seed: int = 0) -> Batch:
        """Never waits for the device: `rows` lie where the tensors lie."""
        return {
            "tokens": self.tokens_NT[rows],
            "latent": self.latents_ND[rows],
            "sentence": rows,
            "noise_seed": noise_seed,
        }


@dataclass(frozen=True)
class Prepared:
    tokenizer: Tokenizer
    scale: Scale
    encoder: str
    train: Split
    val: Split

    def to(self, device: str) -> Prepared:
        return Prepared(self.tokenizer, self.scale, self.encoder, self.train.to(device), self.val.to(device))


def prepare(config: Config, cache: Path, *, device: str = "cpu") -> Prepared:
    """Sentences, tokens and latents for a configuration; the second time they come from the cache."""
    data = config.data
    sentences = read_sentences(data.corpus, data.max_sentences)
    # Every k-th sentence is for validation: dictionaries are in order of the alphabet, and both parts shall see it all.
    every = max(2, len(sentences) // data.val_sentences)
    held_out = sentences[every // 2 :: every][: data.val_sentences]
    kept = set(held_out)
    trained = [sentence for sentence in sentences if sentence not in kept]

    folder = encoder_folder(config.latent.encoder)
    what = [VERSION, data.vocab_size, data.seq_len, data.val_sentences, config.latent.dim, folder and folder.name]
    digest = hashlib.blake2b(json.dumps([what, sentences]).encode(), digest_size=8).hexdigest()
    path = cache / f"{digest}.safetensors"
    tokenizer_path = cache / f"{digest}.tokenizer.json"
    if not (path.is_file() and tokenizer_path.is_file()):
        cache.mkdir(parents=True, exist_ok=True)
        _make(config, trained, held_out, path, tokenizer_path, device)
    with safe_open(path, "pt") as file:
        spread = float((file.metadata() or {})["spread"])
        encoder = (file.metadata() or {})["encoder"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return Prepared(
        Tokenizer.from_file(str(tokenizer_path)),
        Scale(tensors["mean"], spread),
        encoder,
        Split(trained, tensors["train.tokens"].long(), tensors["train.latents"]),
        Split(held_out, tensors["val.tokens"].long(), tensors["val.latents"]),
    )


def _make(
    config: Config, trained: list[str], held_out: list[str], path: Path, tokenizer_path: Path, device: str
) -> None:
    encode, name = make_encoder(config.latent.encoder, config.latent.dim, device)
    latents_ND, val_latents_ND = encode(trained), encode(held_out)
    scale = Scale.of(latents_ND)
    tokenizer = train_tokenizer(trained, config.data.vocab_size)
    tokens = {
        f"{part}.tokens": torch.tensor(tokenise(tokenizer, sentences, config.data.seq_len), dtype=torch.int32)
        for part, sentences in (("train", trained), ("val", held_out))
    }
    latents = {
        "train.latents": scale.standardise(latents_ND).contiguous(),
        "val.latents": scale.standardise(val_latents_ND).contiguous(),
        "mean": scale.mean_D.contiguous(),
    }
    tokenizer.save(str(tokenizer_path))
    unfinished = path.with_suffix(".tmp")
    save_file({**tokens, **latents}, unfinished, metadata={"spread": repr(scale.spread), "encoder": name})
    unfinished.replace(path)


def batches(split: Split, batch_size: int, *, seed: int, start: int = 0) -> Iterator[Batch]:
    """Batches without end from the `start`-th on, each epoch in an order of its own."""
    size = min(batch_size, len(split))
    per_epoch = len(split) // size
    place = start
    while True:
        epoch, first = divmod(place, per_epoch)
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        order = order.to(split.tokens_NT.device)
        for index in range(first, per_epoch):
            rows = order[index * size : (index + 1) * size]
            yield split.batch(rows, noise_seed=(seed * 1_000_003 + place) % 2**31)
            place += 1
