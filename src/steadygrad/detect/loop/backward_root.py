"""The loss of the backward pass that is running, where no one has shown it: from the frame that called it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_DEPTH = 80
_FILE = torch.autograd.__file__


def backward_root() -> Tensor | None:
    """Only from inside of a hook of that pass. None where several threads differentiate at the same time."""
    here = threading.get_ident()
    frames = sys._current_frames()
    own = list(_roots(frames.get(here)))
    roots = own or [root for thread, frame in frames.items() if thread != here for root in _roots(frame)]
    found = roots[0] if len(roots) == 1 else None
    return found if isinstance(found, Tensor) and found.grad_fn is not None else None


def _roots(frame: FrameType | None) -> Iterator[Any]:
    """What `torch.autograd.backward` was called with in the calls that led to this frame, innermost first."""
    for _ in range(_DEPTH):
        if frame is None:
            return
        if frame.f_code.co_name == "backward" and frame.f_code.co_filename == _FILE:
            tensors = frame.f_locals.get("tensors")
            yield tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
            return
        frame = frame.f_back
