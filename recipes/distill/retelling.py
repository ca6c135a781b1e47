"""The teacher's distribution, told in the student's tokens: log-probabilities for `sg.numerics.distillation_loss`.

Shapes: N positions, T the teacher's vocabulary, S the student's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_ROWS = 256
"""Rows held in float32 at a time: a teacher of 49,152 tokens needs 50 MB for them."""


def retell(teacher_NT: Tensor, first_piece_T: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """log p of each of the student's tokens: the sum over the teacher's tokens that begin with it, in float32 or wider;
    and how much of the teacher's probability was told.

    Tokens of the teacher that are not compared (-1) are left out and the rest is normalised. A token of the student
    that no teacher token begins with is -inf. Does not sync with the host; of the size of the teacher's logits nothing
    is kept for backward but those logits. What was told has no gradient: it must not learn to tell less.
    """
    return _Retell.apply(teacher_NT, first_piece_T, vocabulary)  # type: ignore[no-untyped-call,no-any-return]


class _Retell(Function):
    @staticmethod
    def forward(ctx: Any, teacher_NT: Tensor, first_T: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(teacher_NT.dtype, torch.float32)
        log_p_NS = torch.empty(len(teacher_NT), vocabulary, dtype=dtype, device=teacher_NT.device)
        told_N = torch.empty(len(teacher_NT), dtype=dtype, device=teacher_NT.device)
        for part in _parts(teacher_NT):
            wide = teacher_NT[part].to(dtype)
            told_N[part] = (_compared(wide, first_T).logsumexp(-1) - wide.logsumexp(-1)).exp()
            log_p_NS[part] = _sums(_compared(wide, first_T).softmax(-1), first_T, vocabulary).log_()
        ctx.save_for_backward(teacher_NT, first_T, log_p_NS)
        ctx.mark_non_differentiable(told_N)
        return log_p_NS, told_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NS: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        teacher_NT, first_T, log_p_NS = ctx.saved_tensors
        gradient = torch.empty_like(teacher_NT)
        # d log p_s / d logit_t = p_t (1[t begins with s] / p_s - 1). A token of no probability has no gradient.
        share_NS = torch.where(log_p_NS > -math.inf, grad_NS * torch.exp(-log_p_NS), 0)
        total_N1 = torch.where(log_p_NS > -math.inf, grad_NS, 0).sum(-1, keepdim=True)
        for part in _parts(teacher_NT):
            p = _compared(teacher_NT[part].to(log_p_NS.dtype), first_T).softmax(-1)
            gradient[part] = p * (share_NS[part][:, first_T.clamp_min(0)] - total_N1[part])
        return gradient, None, None


def _parts(rows: Tensor) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, len(rows), _ROWS)]


def _compared(logits: Tensor, first_T: Tensor) -> Tensor:
    return logits.masked_fill(first_T < 0, -math.inf)


def _sums(p: Tensor, first_T: Tensor, vocabulary: int) -> Tensor:
    # By columns of the transpose: whole rows are added at once.
    summed = p.new_zeros(vocabulary, len(p))
    return summed.index_add_(0, first_T.clamp_min(0), p.T.contiguous()).T
