"""Kullback-Leibler and Jensen-Shannon divergences of rows, with their gradients.

With p the teacher's probabilities and q the student's,

    forward   sum p (log p - log q)
    reverse   sum q (log q - log p)
    jsd       beta KL(p | m) + (1 - beta) KL(q | m),  m = beta p + (1 - beta) q

A logit or logarithm of -inf is a token that cannot come. `holes` says that there may be some: a product of a zero
probability with an infinite logarithm is then made zero, as its limit is.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["forward", "reverse", "jsd"]


def divergence(kind: Kind, log_q: Tensor, log_p: Tensor, beta: float, holes: bool) -> Tensor:
    """One number a row, from log-probabilities."""
    if kind == "forward":
        return _weighted(log_p, log_p - log_q, holes).sum(-1)
    if kind == "reverse":
        return _weighted(log_q, log_q - log_p, holes).sum(-1)
    log_m = _log_mixture(log_q, log_p, beta)
    rows = _weighted(log_p, log_p - log_m, holes).sum(-1).mul_(beta)
    return rows.add_(_weighted(log_q, log_q - log_m, holes).sum(-1), alpha=1 - beta)


def student_gradient(kind: Kind, student: Tensor, teacher: Tensor, beta: float, holes: bool) -> Tensor:
    """With respect to the student's logits, from both logits."""
    if kind == "forward":
        return student.softmax(-1).sub_(teacher.softmax(-1))
    return _one_sided(kind, student, teacher, 1 - beta, holes)


def teacher_gradient(kind: Kind, student: Tensor, teacher: Tensor, beta: float, holes: bool) -> Tensor:
    """With respect to the teacher's logits, from both logits."""
    if kind == "reverse":
        return teacher.softmax(-1).sub_(student.softmax(-1))
    return _one_sided(kind, teacher, student, beta, holes)


def _one_sided(kind: Kind, own: Tensor, other: Tensor, share: float, holes: bool) -> Tensor:
    """The gradient for the side whose probabilities w weigh the sum: w (r - sum(w r)), where r = log w - log of the
    other side, or of the mixture with `share` of that side's own."""
    log_w, log_v = own.log_softmax(-1), other.log_softmax(-1)
    if kind == "jsd":
        slopes = (log_w - _log_mixture(log_w, log_v, 1 - share)).mul_(share)
    else:
        slopes = log_w - log_v
    weighted = _weighted(log_w, slopes, holes)
    return weighted.sub_(log_w.exp_().mul_(weighted.sum(-1, keepdim=True)))


def _weighted(log_w: Tensor, values: Tensor, holes: bool) -> Tensor:
    """w * values, written into `values`."""
    values.mul_(log_w.exp())
    return values.masked_fill_(log_w == -math.inf, 0) if holes else values


def _log_mixture(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
