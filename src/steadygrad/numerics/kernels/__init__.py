"""The same arithmetic in one pass over GPU memory, with Triton.

Plain torch reads and writes a matrix of logits once for every operation of a loss. These kernels read it once or twice
and write its gradient once. They are used where `fused` says yes, and the form in plain torch beside each call remains
for every other device, dtype and layout: both give the same numbers, to the last bits of float32.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fused(*tensors: Tensor) -> bool:
    """Whether all of these can be handed to a kernel: on one GPU, not float64, rows without gaps, not while compiling
    (torch.compile makes its own kernels)."""
    return (
        all(tensor.is_cuda and tensor.dtype in _DTYPES and tensor.stride(-1) == 1 for tensor in tensors)
        and len({tensor.device for tensor in tensors}) == 1
        and tensors[0].numel() > 0
        and not torch.compiler.is_compiling()
        and _have_triton()
    )


@cache
def _have_triton() -> bool:
    return find_spec("triton") is not None
