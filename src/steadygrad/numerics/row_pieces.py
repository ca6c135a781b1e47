"""Walking over the rows of a large matrix of logits in pieces, so that no float32 copy of all of it is ever made.

Shapes: N rows (tokens), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..records.errors import UsageError

# Numbers in one piece. On a CPU it should stay in the cache; on a GPU it should keep the device busy.
_PIECE = {"cpu": 1 << 18, "cuda": 1 << 25}


def pieces(matrix_NV: Tensor, rows: int | None = None) -> Iterator[slice]:
    """Slices over the rows; `rows` at a time, or as many as suit the device."""
    num_rows, width = matrix_NV.shape
    size = rows or max(1, _size(matrix_NV) // max(1, width))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def columns(matrix: Tensor) -> Iterator[slice]:
    """Slices over the columns of a matrix of one row, as many at a time as suit the device."""
    size = _size(matrix)
    for start in range(0, matrix.shape[1], size):
        yield slice(start, min(start + size, matrix.shape[1]))


def _size(tensor: Tensor) -> int:
    return _PIECE.get(tensor.device.type, 1 << 22)


def widened(piece: Tensor, dtype: torch.dtype, divisor: float = 1.0) -> Tensor:
    """The piece in `dtype`, divided. On a GPU in one kernel; not a copy where there is nothing to do."""
    if divisor == 1.0:
        return piece.to(dtype)
    if piece.dtype == dtype or piece.device.type == "cpu":
        return piece.to(dtype).div(divisor)
    # A tensor of one element and two dimensions takes part in type promotion, where a number would not.
    return piece * torch.full((1, 1), 1 / divisor, dtype=dtype, device=piece.device)


def clear_rows_(matrix_NV: Tensor, counts_N: Tensor) -> None:
    """Zero the rows that do not count, whatever they hold: a product with zero would keep their NaN."""
    if matrix_NV.device.type == "cpu" and not torch.compiler.is_compiling():
        matrix_NV.index_fill_(0, (~counts_N).nonzero()[:, 0], 0)  # touches those rows alone
    else:
        matrix_NV.masked_fill_(~counts_N[:, None], 0)  # does not ask the host how many there are


def softmax(piece: Tensor, dtype: torch.dtype, log: bool = False) -> Tensor:
    """The softmax over the last dimension, or its logarithm, in `dtype`."""
    function = torch.log_softmax if log else torch.softmax
    # Fused with the conversion on a GPU; several times slower than two calls on a CPU.
    return function(piece, -1, dtype=dtype) if piece.is_cuda else function(piece.to(dtype), -1)


def as_rows(logits: Tensor) -> Tensor:
    """The logits as a matrix of tokens by vocabulary; a view where they allow it."""
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise UsageError(f"Logits need a last dimension over the vocabulary; these have shape {tuple(logits.shape)}.")
    return logits.reshape(-1, logits.shape[-1])
