"""Cues and replies from two plays, as a fine-tuning set: read the cue, learn to say the reply.

This is how chat models are tuned: the cue is there to be read and only the reply is scored. And it holds a mistake
that many a data loader holds. Long cues are dropped by counting *words*, in the belief that twenty words fit into a
context of 128 *characters*. Nearly all do. Where one does not, cutting the sample to the context leaves no character
of the reply, and a mean over the scored characters is a mean over nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

import torch
from torch import Tensor

PLAYS = ("romeo_and_juliet", "measure_for_measure")
CONTEXT = 128
MAX_CUE_WORDS = 20
PADDING = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """What was said, and what was said next; both begin with the speaker's name."""

    cue: str
    reply: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """All pairs of the two plays, and the characters they are written in."""

    pairs: tuple[Pair, ...]
    alphabet: str

    def encode(self, text: str) -> list[int]:
        """One number a character; 0 is padding."""
        return [self.alphabet.index(character) + 1 for character in text]

    def sample(self, pair: Pair) -> tuple[Tensor, Tensor]:
        """The pair as CONTEXT + 1 numbers, and for each number whether it is scored."""
        cue, reply = self.encode(pair.cue + "\n\n"), self.encode(pair.reply + "\n\n")
        numbers = (cue + reply)[: CONTEXT + 1]
        scored = ([False] * len(cue) + [True] * len(reply))[: CONTEXT + 1]
        short_by = CONTEXT + 1 - len(numbers)
        return torch.tensor(numbers + [PADDING] * short_by), torch.tensor(scored + [False] * short_by)

    def batches(self, *, count: int, size: int, seed: int) -> Iterator[dict[str, Tensor]]:
        """`count` batches, each pair once before any comes again, in an order that only `seed` decides."""
        samples = [self.sample(pair) for pair in self.pairs]
        generator = torch.Generator().manual_seed(seed)
        waiting: list[int] = []
        for _ in range(count):
            while len(waiting) < size:
                waiting += torch.randperm(len(samples), generator=generator).tolist()
            chosen, waiting = waiting[:size], waiting[size:]
            tokens, scored = zip(*(samples[index] for index in chosen), strict=True)
            yield {"tokens": torch.stack(tokens), "scored": torch.stack(scored), "sample_id": torch.tensor(chosen)}


def load() -> Dialogue:
    """Read the plays that come with the package."""
    pairs: list[Pair] = []
    for play in PLAYS:
        text = resources.files(__package__).joinpath("text", f"{play}.txt").read_text(encoding="utf-8")
        speeches = [speech for speech in text.strip().split("\n\n") if speech]
        pairs += [Pair(cue, reply) for cue, reply in pairwise(speeches) if _short(cue)]
    alphabet = "".join(sorted({character for pair in pairs for character in pair.cue + pair.reply + "\n"}))
    return Dialogue(tuple(pairs), alphabet)


def _short(cue: str) -> bool:
    _speaker, _, spoken = cue.partition("\n")
    return len(spoken.split()) <= MAX_CUE_WORDS
