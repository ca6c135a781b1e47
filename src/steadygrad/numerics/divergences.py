"""Kullback-Leibler and Jensen-Shannon divergences of rows of log-probabilities, with their gradients.

All functions take the log-probabilities of the student (log_q) and the teacher (log_p), where -inf means that a token
is impossible, and give one number a row, or the gradient with respect to the logits that one of the two came from.
A product of a zero probability with an infinite logarithm is zero here, as its limit is.

    forward   sum p (log p - log q)
    reverse   sum q (log q - log p)
    jsd       beta KL(p | m) + (1 - beta) KL(q | m),  m = beta p + (1 - beta) q
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["forward", "reverse", "jsd"]


def divergence(kind: Kind, log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    """One number a row."""
    if kind == "forward":
        return _weighted(log_p, log_p - log_q).sum(-1)
    if kind == "reverse":
        return _weighted(log_q, log_q - log_p).sum(-1)
    log_m = _log_mixture(log_q, log_p, beta)
    rows = beta * _weighted(log_p, log_p - log_m).sum(-1)
    return rows.add_(_weighted(log_q, log_q - log_m).sum(-1), alpha=1 - beta)


def student_gradient(kind: Kind, log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    """With respect to the student's logits."""
    if kind == "forward":
        return log_q.exp().sub_(log_p.exp())
    if kind == "reverse":
        return _through_softmax(log_q, log_q - log_p)
    return _through_softmax(log_q, (log_q - _log_mixture(log_q, log_p, beta)).mul_(1 - beta))


def teacher_gradient(kind: Kind, log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    """With respect to the teacher's logits."""
    if kind == "forward":
        return _through_softmax(log_p, log_p - log_q)
    if kind == "reverse":
        return log_p.exp().sub_(log_q.exp())
    return _through_softmax(log_p, (log_p - _log_mixture(log_q, log_p, beta)).mul_(beta))


def _weighted(log_w: Tensor, values: Tensor) -> Tensor:
    """w * values, zero where w is zero by decree."""
    return torch.where(log_w == -math.inf, 0, values.mul_(log_w.exp()))


def _through_softmax(log_w: Tensor, slopes: Tensor) -> Tensor:
    """w * (slopes - sum(w * slopes)): the gradient of a function of w = softmax(x) with respect to x."""
    weighted = _weighted(log_w, slopes)
    return weighted.sub_(log_w.exp().mul_(weighted.sum(-1, keepdim=True)))


def _log_mixture(log_q: Tensor, log_p: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
