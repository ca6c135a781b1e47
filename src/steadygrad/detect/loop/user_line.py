"""The line of the program that is running."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_NOT_THEIRS = (
    str(Path(__file__).resolve().parents[2]),
    str(Path(torch.__file__).resolve().parent),
    str(Path(torch.__file__).parent),
    "<frozen",
    "<string",
)


def user_line(depth: int = 1) -> tuple[str, int]:
    """File and line of the nearest frame outside of torch and of this package; ("", 0) where there is none."""
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:
        return "", 0
    for _ in range(40):
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THEIRS):
            return name, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "", 0
