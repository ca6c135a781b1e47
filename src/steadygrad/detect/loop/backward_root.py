"""The loss of the backward pass that is running, where the entry point does not see it: from the frame that called it.

Only in the thread of the caller, as on a CPU. No frame is kept: it would keep everything in its function alive.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from ..tensors.foreign_objects import isinstance

_DEPTH = 80
_FILE = torch.autograd.__file__


def backward_root() -> Tensor | None:
    """What `torch.autograd.backward` was called with, asked from inside of a hook of that pass; None elsewhere."""
    frame: Any = sys._getframe(1)
    try:
        for _ in range(_DEPTH):
            if frame is None:
                return None
            if frame.f_code.co_name == "backward" and frame.f_code.co_filename == _FILE:
                tensors = frame.f_locals.get("tensors")
                root = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
                return root if isinstance(root, Tensor) and root.grad_fn is not None else None
            frame = frame.f_back
        return None
    finally:
        del frame
