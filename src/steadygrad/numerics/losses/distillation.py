"""Distillation: how far the student's next-token distribution is from the teacher's, without another copy of either.

Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ...records.errors import UsageError
from ..kernels import fused
from ..masked_means import broadcast_mask, masked_mean, reduction_dtype
from ..published_findings import Board, board
from ..row_pieces import as_rows, clear_rows_, pieces, widened
from .divergences import Kind, divergence, student_gradient, teacher_gradient

_KINDS = ("forward", "reverse", "jsd")


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    kind: Kind = "forward",
    temperature: float = 1.0,
    beta: float = 0.5,
    mask: Tensor | None = None,
    vocab_mask: Tensor | None = None,
    scale_by_temperature: bool = True,
    rows_at_once: int | None = None,
    report_to: Board | None = None,
) -> Tensor:
    """The mean over tokens of the divergence between teacher p and student q, both softmax(logits / temperature).

    `forward` is KL(p | q), `reverse` KL(q | p), `jsd` the Jensen-Shannon divergence whose mixture holds `beta` of the
    teacher. With `scale_by_temperature` it is multiplied by temperature squared, which keeps the gradient's size.

    A logit of -inf is a token that cannot come. Where that alone would make the divergence infinite (the student
    forbids what the teacher allows in `forward`, the other way round in `reverse`), the token is left out of both, and
    both are normalised over the rest. `vocab_mask` leaves tokens out of both in any case. A row with nothing left is
    zero, has no gradient and is counted on the board as `empty_support`; so is an `empty_mask`.

    The softmaxes are taken in float32, by a Triton kernel where there is a GPU and a few rows at a time elsewhere, and
    again in backward: beside the gradient itself at most those few rows are ever held. Gives gradients to whichever of
    the two asks for them. Does not sync with the host. Once differentiable.

    Args:
        student_logits, teacher_logits: (..., V), any floating dtypes.
        mask: (...), bool or weights. What is masked out may be anything, NaN too.
        vocab_mask: (V) or (..., V), true where a token may be compared.
        rows_at_once: tokens in one piece where no kernel does it; chosen for the device by default.

    Returns:
        A float32 scalar.

    Example:
        >>> logits = torch.randn(2, 5)
        >>> round(float(sg.numerics.distillation_loss(logits, logits)), 6)
        0.0
    """
    _check(student_logits, teacher_logits, kind, temperature, beta)
    shape = student_logits.shape[:-1]
    weights = torch.ones(shape, dtype=torch.bool, device=student_logits.device)
    if mask is not None:
        weights = broadcast_mask(mask, weights)
    vocabulary = None
    if vocab_mask is not None:
        vocabulary = vocab_mask.bool().expand(student_logits.shape) if vocab_mask.dim() > 1 else vocab_mask.bool()
        vocabulary = as_rows(vocabulary) if vocabulary.dim() > 1 else vocabulary[None]
    student_NV, teacher_NV = as_rows(student_logits), as_rows(teacher_logits)
    how = _How(kind, temperature, beta, rows_at_once)
    counts_N = (weights != 0).reshape(-1)
    divergences_N, compared_N = _DivergenceRows.apply(student_NV, teacher_NV, counts_N, vocabulary, how)  # type: ignore[no-untyped-call]
    (report_to or board()).count("empty_support", counts_N & ~compared_N)
    factor = temperature**2 if scale_by_temperature else 1.0
    return masked_mean(divergences_N.reshape(shape) * factor, weights, report_to=report_to)


def _check(student: Tensor, teacher: Tensor, kind: str, temperature: float, beta: float) -> None:
    if student.shape != teacher.shape:
        raise UsageError(
            f"Student logits of shape {tuple(student.shape)} and teacher logits of shape {tuple(teacher.shape)} cannot "
            "be compared: cut or pad them to one vocabulary, and leave the padding out with vocab_mask=."
        )
    if kind not in _KINDS:
        raise UsageError(f"kind={kind!r} is not known: pass one of {', '.join(map(repr, _KINDS))}.")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UsageError(f"temperature={temperature} must be a finite number above zero.")
    if not 0 < beta < 1:
        raise UsageError(f"beta={beta} must lie between 0 and 1; the ends are kind='reverse' and kind='forward'.")


class _How:
    """What one call asked for."""

    __slots__ = ("beta", "kind", "rows", "temperature")

    def __init__(self, kind: Kind, temperature: float, beta: float, rows: int | None) -> None:
        self.kind, self.temperature, self.beta, self.rows = kind, temperature, beta, rows


class _DivergenceRows(Function):
    """The divergence of each row that counts, zero for the others, and which rows had a token to compare."""

    @staticmethod
    def forward(
        ctx: Any, student_NV: Tensor, teacher_NV: Tensor, counts_N: Tensor, vocabulary: Tensor | None, how: _How
    ) -> tuple[Tensor, Tensor]:
        ctx.how = how
        if fused(student_NV, teacher_NV):
            from ..kernels.divergence_rows import Asked, divergence_rows

            asked = Asked(how.kind, how.temperature, how.beta)
            found = divergence_rows(student_NV, teacher_NV, counts_N, vocabulary, asked)
            ctx.save_for_backward(student_NV, teacher_NV, counts_N, vocabulary, *found)
            ctx.mark_non_differentiable(found.compared)
            return found.divergence, found.compared
        dtype = reduction_dtype(student_NV, teacher_NV)
        divergences_N = torch.zeros(len(student_NV), dtype=dtype, device=student_NV.device)
        compared_N = torch.ones_like(counts_N)
        for part in pieces(student_NV, how.rows):
            student, teacher, holes = _comparable(student_NV, teacher_NV, vocabulary, part, how)
            if holes:
                compared_N[part] = (student.amax(-1) != -math.inf) & (teacher.amax(-1) != -math.inf)
            rows = divergence(how.kind, student.log_softmax(-1), teacher.log_softmax(-1), how.beta, holes)
            divergences_N[part] = torch.where(counts_N[part] & compared_N[part], rows, 0)
        ctx.save_for_backward(student_NV, teacher_NV, counts_N & compared_N, vocabulary)
        ctx.mark_non_differentiable(compared_N)
        return divergences_N, compared_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        student_NV, teacher_NV, counts_N, vocabulary, *found = ctx.saved_tensors
        how: _How = ctx.how
        if found:
            from ..kernels.divergence_rows import Asked, RowSums, divergence_gradient

            asked, sums = Asked(how.kind, how.temperature, how.beta), RowSums(*found)
            both = [
                divergence_gradient(
                    student_NV, teacher_NV, counts_N, vocabulary, sums, grad_N, asked, of_student=of_student
                )
                if ctx.needs_input_grad[number]
                else None
                for number, of_student in enumerate((True, False))
            ]
            return *both, None, None, None
        student_grad = torch.empty_like(student_NV) if ctx.needs_input_grad[0] else None
        teacher_grad = torch.empty_like(teacher_NV) if ctx.needs_input_grad[1] else None
        for part in pieces(student_NV, how.rows):
            student, teacher, holes = _comparable(student_NV, teacher_NV, vocabulary, part, how)
            factor = grad_N[part, None] / how.temperature
            for into, slope in ((student_grad, student_gradient), (teacher_grad, teacher_gradient)):
                if into is not None:
                    torch.mul(slope(how.kind, student, teacher, how.beta, holes), factor, out=into[part])
                    clear_rows_(into[part], counts_N[part])
        return student_grad, teacher_grad, None, None, None


def _comparable(
    student_NV: Tensor, teacher_NV: Tensor, vocabulary: Tensor | None, part: slice, how: _How
) -> tuple[Tensor, Tensor, bool]:
    """A few rows of both in float32 over the temperature, -inf where they are left out, and whether they may have
    such holes at all: where there are none, much of the work is spared."""
    dtype = reduction_dtype(student_NV, teacher_NV)
    student = widened(student_NV[part], dtype, how.temperature)
    teacher = widened(teacher_NV[part], dtype, how.temperature)
    if vocabulary is not None:
        left_out = ~(vocabulary if len(vocabulary) == 1 else vocabulary[part])
        student, teacher = student.masked_fill(left_out, -math.inf), teacher.masked_fill(left_out, -math.inf)
    elif not (_may_have_holes(student) or _may_have_holes(teacher)):
        return student, teacher, False
    if how.kind == "forward":
        teacher = teacher.masked_fill(student == -math.inf, -math.inf)
    elif how.kind == "reverse":
        student = student.masked_fill(teacher == -math.inf, -math.inf)
    return student, teacher, True


def _may_have_holes(logits: Tensor) -> bool:
    """Looks on a CPU, where it costs next to nothing; elsewhere the answer would be a host sync, and is yes."""
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return True
    # By rows, for a NaN in one must not hide the hole of another. So low a logit may have a logarithm of -inf.
    return bool((logits.amin(-1) <= -1e37).any())
