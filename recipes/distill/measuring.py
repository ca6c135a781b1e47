"""How well a model speaks text it has not learnt from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import steadygrad as sg

from .alignment import Aligned
from .batches import in_order
from .experts import routed_layers
from .models import Teacher
from .spelling import encode, token_bytes


@dataclass(frozen=True, slots=True)
class Score:
    """`perplexity` is per token of the model's own vocabulary; `bits_per_byte` can be compared between vocabularies."""

    perplexity: float
    bits_per_byte: float


@torch.no_grad()
def score_student(student: Any, rows: Sequence[Aligned], num_bytes: int, *, device: torch.device) -> Score:
    """Validation perplexity, in float32, over every token of the rows."""
    total, tokens = 0.0, 0
    was_training = student.training
    student.eval()
    for batch in in_order(rows, batch_size=32, device=device):
        logits = student(batch["student_ids"], use_cache=False).logits
        total += float(sg.numerics.masked_cross_entropy(logits, batch["labels"], reduction="sum"))
        tokens += int((batch["labels"] != -100).sum())
    student.train(was_training)
    return _score(total, tokens, num_bytes)


@torch.no_grad()
def score_teacher(teacher: Teacher, passages: Sequence[str], *, device: torch.device) -> Score:
    total, tokens = 0.0, 0
    for text in passages:
        ids = torch.tensor([[teacher.begin, *encode(teacher.tokenizer, text)]], device=device)
        logits = teacher.model(ids, use_cache=False).logits[:, :-1]
        total += float(sg.numerics.masked_cross_entropy(logits, ids[:, 1:], reduction="sum"))
        tokens += ids.shape[1] - 1
    return _score(total, tokens, sum(len(text.encode()) for text in passages))


@torch.no_grad()
def say(teacher: Teacher, prompt: str, *, tokens: int, device: torch.device) -> str:
    """The teacher's most likely words after the prompt."""
    ids = torch.tensor([[teacher.begin, *encode(teacher.tokenizer, prompt)]], device=device)
    said = []
    spelled = token_bytes(teacher.tokenizer)
    for _ in range(tokens):
        best = int(teacher.model(ids, use_cache=False).logits[0, -1].argmax())
        said.append(spelled[best] if best < len(spelled) else b"")
        ids = torch.cat([ids, ids.new_tensor([[best]])], dim=1)
    return b"".join(said).decode(errors="replace")


def router_drift(teacher: Any) -> float:
    """How far the routers are from where they began, as a share of their length."""
    shares = [
        float((layer.router.weight.detach() - layer.anchor).norm() / layer.anchor.norm())
        for layer in routed_layers(teacher)
    ]
    return sum(shares) / max(1, len(shares))


def _score(total: float, tokens: int, num_bytes: int) -> Score:
    mean = total / max(1, tokens)
    perplexity = math.exp(mean) if mean < 700 else math.inf
    return Score(perplexity=perplexity, bits_per_byte=total / math.log(2) / max(1, num_bytes))
