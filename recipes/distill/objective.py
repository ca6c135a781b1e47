"""What is minimised: the text, the teacher, and what keeps its routers honest. Named terms whose sum is the loss.

Shapes: B passages, P aligned positions, S the student's vocabulary, D width of the teacher, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import steadygrad as sg

from .batches import Batch
from .experts import RoutedFeedForward, routed_layers
from .models import Pair
from .retelling import retell
from .settings import Settings

Terms = dict[str, Tensor]


def make_loss_fn(settings: Settings) -> Callable[[Any, Batch], Terms]:
    """`loss_fn(pair, batch)` for the guard. Does not sync with the host."""

    def loss_fn(pair: Pair, batch: Batch) -> Terms:
        student_BLS = pair.student(batch["student_ids"], use_cache=False).logits
        terms = {"ce": settings.ce_weight * sg.numerics.masked_cross_entropy(student_BLS, batch["labels"])}
        if pair.teacher is not None and settings.kd_weight:
            with note_taking(pair.teacher) as layers:
                teacher_BPS, told_BP = teacher_log_p(pair, batch, vocabulary=student_BLS.shape[-1])
                weights_BP = batch["paired"] * told_BP if settings.match == "begins" else batch["paired"]
                terms["kd"] = settings.kd_weight * sg.numerics.distillation_loss(
                    take(student_BLS, batch["at_student"]),
                    teacher_BPS,
                    temperature=settings.temperature,
                    mask=weights_BP,
                    vocab_mask=pair.compared,
                )
                if settings.train_routers:
                    terms |= router_terms(layers, batch["teacher_mask"], settings)
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    return loss_fn


def teacher_log_p(pair: Pair, batch: Batch, *, vocabulary: int) -> tuple[Tensor, Tensor]:
    """What the teacher expects at the aligned positions, in the student's tokens (B, P, S), and how much of it that is
    (B, P)."""
    teacher = pair.teacher
    assert teacher is not None
    hidden_BLD = teacher.base_model(batch["teacher_ids"], use_cache=False).last_hidden_state
    hidden_BPD = take(hidden_BLD, batch["at_teacher"])
    logits = teacher.get_output_embeddings()(hidden_BPD).flatten(0, 1)
    log_p, told = retell(logits, pair.first_piece, vocabulary)
    shape = hidden_BPD.shape[:2]
    return log_p.reshape(*shape, vocabulary), told.reshape(shape)


def take(values_BLX: Tensor, places_BP: Tensor) -> Tensor:
    """The values at those places of each passage."""
    return values_BLX.gather(1, places_BP[..., None].expand(-1, -1, values_BLX.shape[-1]))


def router_terms(layers: list[RoutedFeedForward], mask_BL: Tensor, settings: Settings) -> Terms:
    """anchor: how far the routers have moved. balance: experts picked more often than others. entropy: how certain they
    are beyond need. All zero or small for routers that have not moved, and means over the layers."""
    anchor, balance, entropy = [], [], []
    for layer in layers:
        weight, start = layer.router.weight, layer.anchor
        anchor.append((weight - start).square().sum() / start.square().sum().clamp_min(1e-6))
        for picked, log_p in layer.notes:
            experts = log_p.shape[-1]
            p = log_p.exp()
            used_E = sg.numerics.masked_mean(picked, mask_BL[..., None], dim=(0, 1)) / layer.top_k
            thought_E = sg.numerics.masked_mean(p, mask_BL[..., None], dim=(0, 1))
            balance.append(experts * (used_E * thought_E).sum() - 1)
            spread = sg.numerics.masked_mean(-(p * log_p).sum(-1), mask_BL)
            entropy.append(1 - spread / math.log(experts))
    return {
        "anchor": settings.anchor_weight * torch.stack(anchor).mean(),
        "balance": settings.balance_weight * torch.stack(balance).mean(),
        "entropy": settings.entropy_weight * torch.stack(entropy).mean(),
    }


@contextmanager
def note_taking(teacher: nn.Module) -> Iterator[list[RoutedFeedForward]]:
    """Within the block the routed layers keep what their routers did."""
    layers = list(routed_layers(teacher))
    for layer in layers:
        layer.takes_notes = True
    try:
        yield layers
    finally:
        for layer in layers:
            layer.takes_notes = False
            layer.notes.clear()
