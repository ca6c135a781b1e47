"""Divergences between rows of two matrices of logits, as `divergences.py` defines them. One program a row.

Shapes: N rows, V vocabulary. Both passes over a row recompute what they need from the logits: nothing of their size is
kept but them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 2048, 8
_NUMBER = {"forward": 0, "reverse": 1, "jsd": 2}


class RowSums(NamedTuple):
    """Float32 numbers of each row. `by_teacher` and `by_student` are the sums that each side's probabilities weigh."""

    divergence: Tensor
    compared: Tensor
    student_normaliser: Tensor
    teacher_normaliser: Tensor
    by_student: Tensor
    by_teacher: Tensor


class Asked(NamedTuple):
    kind: str
    temperature: float
    beta: float


def divergence_rows(
    student_NV: Tensor, teacher_NV: Tensor, counts_N: Tensor, vocabulary: Tensor | None, asked: Asked
) -> RowSums:
    """The divergence of each row that counts and has a token to compare, zero for the others."""
    sums = [torch.empty(len(student_NV), dtype=torch.float32, device=student_NV.device) for _ in range(5)]
    found = RowSums(sums[0], torch.empty_like(counts_N), *sums[1:])
    allowed, stride = _allowed(vocabulary, counts_N)
    with torch.cuda.device_of(student_NV):
        _forward[(len(student_NV),)](
            student_NV, teacher_NV, allowed, counts_N, *found, student_NV.stride(0), teacher_NV.stride(0), stride,
            student_NV.shape[1], 1 / asked.temperature, asked.beta, math.log(asked.beta), math.log1p(-asked.beta),
            KIND=_NUMBER[asked.kind], MASKED=vocabulary is not None, BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return found


def divergence_gradient(
    student_NV: Tensor,
    teacher_NV: Tensor,
    counts_N: Tensor,
    vocabulary: Tensor | None,
    found: RowSums,
    grad_N: Tensor,
    asked: Asked,
    *,
    of_student: bool,
) -> Tensor:
    """The gradient for the logits of one side."""
    own = student_NV if of_student else teacher_NV
    gradient_NV = torch.empty(own.shape, dtype=own.dtype, device=own.device)
    allowed, stride = _allowed(vocabulary, counts_N)
    weighed = found.by_student if of_student else found.by_teacher
    with torch.cuda.device_of(own):
        _backward[(len(own),)](
            student_NV, teacher_NV, allowed, counts_N, found.compared, found.student_normaliser,
            found.teacher_normaliser, weighed, grad_N.contiguous(), gradient_NV,
            student_NV.stride(0), teacher_NV.stride(0), stride, own.shape[1], 1 / asked.temperature,
            asked.beta, math.log(asked.beta), math.log1p(-asked.beta),
            KIND=_NUMBER[asked.kind], MASKED=vocabulary is not None, OF_STUDENT=of_student,
            BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return gradient_NV


def _allowed(vocabulary: Tensor | None, counts_N: Tensor) -> tuple[Tensor, int]:
    """The mask over tokens and how far its rows are apart; a stand-in that is never read where there is none."""
    if vocabulary is None:
        return counts_N, 0
    vocabulary = vocabulary if vocabulary.stride(-1) == 1 else vocabulary.contiguous()
    return vocabulary, 0 if len(vocabulary) == 1 else vocabulary.stride(0)


@triton.jit
def _comparable(student, teacher, allowed, at, inside, scale, KIND: tl.constexpr, MASKED: tl.constexpr):
    """Both logits over the temperature, -inf where a token is left out."""
    s = tl.load(student + at, mask=inside, other=float("-inf")).to(tl.float32) * scale
    t = tl.load(teacher + at, mask=inside, other=float("-inf")).to(tl.float32) * scale
    if MASKED:
        may = tl.load(allowed + at, mask=inside, other=0) != 0
        s = tl.where(may, s, float("-inf"))
        t = tl.where(may, t, float("-inf"))
    if KIND == 0:
        t = tl.where(s == float("-inf"), float("-inf"), t)
    elif KIND == 1:
        s = tl.where(t == float("-inf"), float("-inf"), s)
    return s, t


@triton.jit
def _gathered(most, total):
    """The normaliser of what every lane has summed up, and whether there was anything."""
    highest = tl.max(most, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    return base + tl.log(tl.sum(total * tl.exp(most - base), 0)), highest


@triton.jit
def _added(most, total, x):
    higher = tl.maximum(most, x)
    base = tl.where(higher == float("-inf"), 0.0, higher)  # -inf - -inf would be NaN
    return higher, total * tl.exp(most - base) + tl.exp(x - base)


@triton.jit
def _log_mixture(log_q, log_p, log_beta, log_rest):
    a, b = log_p + log_beta, log_q + log_rest
    most = tl.maximum(a, b)
    base = tl.where(most == float("-inf"), 0.0, most)
    return base + tl.log(tl.exp(a - base) + tl.exp(b - base))


@triton.jit
def _forward(
    student, teacher, allowed, counts, divergences, compared, student_norms, teacher_norms, by_student, by_teacher,
    student_stride, teacher_stride, allowed_stride, V, scale, beta, log_beta, log_rest,
    KIND: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(counts + row) == 0:
        tl.store(divergences + row, 0.0)
        tl.store(compared + row, 1)
        return
    student += row * student_stride
    teacher += row * teacher_stride
    allowed += row * allowed_stride
    offsets = tl.arange(0, BLOCK)
    most_s = tl.full((BLOCK,), float("-inf"), tl.float32)
    most_t = tl.full((BLOCK,), float("-inf"), tl.float32)
    total_s = tl.zeros((BLOCK,), tl.float32)
    total_t = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, V, BLOCK):
        at = block + offsets
        s, t = _comparable(student, teacher, allowed, at, at < V, scale, KIND, MASKED)
        most_s, total_s = _added(most_s, total_s, s)
        most_t, total_t = _added(most_t, total_t, t)
    norm_s, highest_s = _gathered(most_s, total_s)
    norm_t, highest_t = _gathered(most_t, total_t)
    there = (highest_s != float("-inf")) & (highest_t != float("-inf"))
    sum_s = tl.zeros((BLOCK,), tl.float32)
    sum_t = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, V, BLOCK):
        at = block + offsets
        s, t = _comparable(student, teacher, allowed, at, at < V, scale, KIND, MASKED)
        log_q, log_p = s - norm_s, t - norm_t
        if KIND == 0:
            sum_t += tl.where(t == float("-inf"), 0.0, tl.exp(log_p) * (log_p - log_q))
        elif KIND == 1:
            sum_s += tl.where(s == float("-inf"), 0.0, tl.exp(log_q) * (log_q - log_p))
        else:
            log_m = _log_mixture(log_q, log_p, log_beta, log_rest)
            sum_t += tl.where(t == float("-inf"), 0.0, tl.exp(log_p) * (log_p - log_m))
            sum_s += tl.where(s == float("-inf"), 0.0, tl.exp(log_q) * (log_q - log_m))
    own_s, own_t = tl.sum(sum_s, 0), tl.sum(sum_t, 0)
    if KIND == 2:
        own_s, own_t = own_s * (1.0 - beta), own_t * beta
    tl.store(divergences + row, tl.where(there, own_s + own_t, 0.0))
    tl.store(compared + row, there)
    tl.store(student_norms + row, norm_s)
    tl.store(teacher_norms + row, norm_t)
    tl.store(by_student + row, own_s)
    tl.store(by_teacher + row, own_t)


@triton.jit
def _backward(
    student, teacher, allowed, counts, compared, student_norms, teacher_norms, weighed, grads, gradient,
    student_stride, teacher_stride, allowed_stride, V, scale, beta, log_beta, log_rest,
    KIND: tl.constexpr, MASKED: tl.constexpr, OF_STUDENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    student += row * student_stride
    teacher += row * teacher_stride
    allowed += row * allowed_stride
    gradient += row * V
    offsets = tl.arange(0, BLOCK)
    if (tl.load(counts + row) == 0) | (tl.load(compared + row) == 0):
        for block in range(0, V, BLOCK):
            tl.store(gradient + block + offsets, 0.0, mask=block + offsets < V)
        return
    norm_s, norm_t = tl.load(student_norms + row), tl.load(teacher_norms + row)
    own_sum, grad = tl.load(weighed + row), tl.load(grads + row) * scale
    for block in range(0, V, BLOCK):
        at = block + offsets
        s, t = _comparable(student, teacher, allowed, at, at < V, scale, KIND, MASKED)
        log_q, log_p = s - norm_s, t - norm_t
        # log_w weighs the sum on this side; log_v is the other side.
        log_w = log_q if OF_STUDENT else log_p
        log_v = log_p if OF_STUDENT else log_q
        if (KIND == 0 and OF_STUDENT) or (KIND == 1 and not OF_STUDENT):
            made = tl.exp(log_w) - tl.exp(log_v)
        else:
            if KIND == 2:
                share = (1.0 - beta) if OF_STUDENT else beta
                slope = (log_w - _log_mixture(log_q, log_p, log_beta, log_rest)) * share
            else:
                slope = log_w - log_v
            made = tl.where(log_w == float("-inf"), 0.0, tl.exp(log_w) * (slope - own_sum))
        tl.store(gradient + at, made * grad, mask=at < V)
