"""`eval`: the best students of a run, measured again from what is on disk. Needs no teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from steadygrad import UsageError

from .alignment import Aligned
from .measuring import score_student
from .models import load_student
from .settings import Settings
from .spelling import BEGIN, encode, load_tokenizer, mark
from .text import read_corpus

_PROMPT = "The "


def evaluate(out: Path, settings: Settings, *, data: str | None = None) -> list[dict[str, Any]]:
    """One entry for each best student: perplexity, bits a byte, and what it says."""
    tokenizer = load_tokenizer(out / "tokenizer.json")
    corpus = read_corpus(data or settings.data, max_bytes=settings.max_bytes)
    passages = corpus.validation if data is None else (*corpus.train, *corpus.validation)
    begin = mark(tokenizer, BEGIN)
    rows = [Aligned(student=(begin, *encode(tokenizer, text)), teacher=(), pairs=()) for text in passages]
    num_bytes = sum(len(text.encode()) for text in passages)
    found = sorted(out.glob("seed-*/*/best/student.safetensors"))
    if not found:
        raise UsageError(f"There is no student in {out} yet: run train first.")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scores = []
    for file in found:
        student = load_student(file.parent).to(device).eval()
        score = score_student(student, rows, num_bytes, device=device)
        scores.append(
            {
                "run": "/".join(file.parts[-4:-2]),
                "perplexity": score.perplexity,
                "bits_per_byte": score.bits_per_byte,
                "words": _say(student, tokenizer, device),
            }
        )
    return scores


@torch.no_grad()
def _say(student: Any, tokenizer: Tokenizer, device: torch.device, tokens: int = 30) -> str:
    ids = torch.tensor([[mark(tokenizer, BEGIN), *encode(tokenizer, _PROMPT.strip())]], device=device)
    for _ in range(tokens):
        best = student(ids, use_cache=False).logits[0, -1].argmax()
        ids = torch.cat([ids, best.reshape(1, 1)], dim=1)
    return tokenizer.decode(ids[0].tolist())
