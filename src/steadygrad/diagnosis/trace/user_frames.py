"""Whose line is this? The innermost frames of the user's own code, found without keeping any frame alive."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from .backward_mode import StaysInBackward

_TORCH = (str(Path(torch.__file__).resolve().parent), str(Path(torch.__file__).parent))
"""Where torch lies, with and without links: an environment may be one."""
_OURS = str(Path(__file__).resolve().parents[2])
# Among our own files the instruments of the diagnosis stand between the patient and an op; all others run the patient,
# and what they do between forward and update (dividing a loss, asking for backward) is no line of the user's.
_TOOLS = str(Path(__file__).resolve().parents[1])
_DRIVERS = ("replay/guard_step.py", "replay/replay_step.py", "diagnosis/service.py")
# The demo's training program plays the user.
_DEMO = str(Path(_OURS) / "commands" / "demo_parts")
_STDLIB = tuple(
    str(Path(sysconfig.get_paths()[key]).resolve()) for key in ("stdlib", "platstdlib") if key in sysconfig.get_paths()
)
_ENGINE = ("_engine_run_backward", "run_backward")
_OUR_ENGINE = StaysInBackward._backward.__code__
# Our own frames that stand between two frames of the patient, while a tracer or an operation is in place.
_TRANSPARENT = frozenset({"__torch_function__", "__torch_dispatch__", "noted", "operated", "widened"})
# Source that torch, attrs and others write and give to linecache.
_GENERATED = ("<eval_with_key>", "<attrs generated", "<torch_package", "<frozen", "<string", "<torch_")
_MAX_DEPTH = 400
_MAX_FRAMES = 12


@dataclass(frozen=True, slots=True)
class UserFrame:
    """One place in someone's source. `library` marks installed packages, as opposed to the user's own files."""

    file: str
    line: int
    function: str
    library: bool = False
    owner: str = ""
    """The class that the function belongs to, "" for none."""

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames between an op and the diagnosis, innermost first, and whether a checkpoint was recomputing."""

    frames: tuple[UserFrame, ...] = ()
    recompute: bool = False
    in_engine: bool = False

    @property
    def innermost(self) -> UserFrame | None:
        """The user's innermost line; an installed library's where the user has none on the stack."""
        return next((frame for frame in self.frames if not frame.library), self.frames[0] if self.frames else None)


@cache
def _kind(filename: str) -> str:
    """torch, ours, owner, library or user, by where the file lies."""
    if filename.startswith("<"):
        # A notebook's cell, or source that a program ran itself and whose lines it gave to linecache.
        written = filename in linecache.cache and not filename.startswith(_GENERATED)
        return "user" if written or filename.startswith("<ipython-input") else "torch"
    path = str(Path(filename).resolve()) if filename else ""
    if path.startswith(_TORCH):
        return "torch"
    if path.startswith(_DEMO):
        return "user"
    if path.startswith(_OURS):
        return "ours" if path.startswith(_TOOLS) and not path.endswith(_DRIVERS) else "owner"
    if "site-packages" in path or "dist-packages" in path:
        return "library"
    return "torch" if path.startswith(_STDLIB) else "user"


def is_of_program(filename: str) -> bool:
    """Whether a file is the user's or an installed library's, and neither torch's nor ours."""
    return _kind(filename) in ("user", "library")


def current_stack(*, owners: frozenset[str] = frozenset()) -> Stack:
    """The stack from here outwards up to the diagnosis's own call into the patient.

    `owners` are files that drive the loop (a guard's owner, a trainer's integration): neither user nor library.
    Inside a backward pass the walk ends at the autograd engine: what called `backward()` made no value.
    """
    frame: FrameType | None = sys._getframe(1)
    found: list[UserFrame] = []
    recompute = in_engine = False
    entered_replayable = reached_user = False
    for _ in range(_MAX_DEPTH):
        if frame is None or (len(found) >= _MAX_FRAMES and reached_user):
            break
        code = frame.f_code
        kind = _kind(code.co_filename)
        if (code.co_name in _ENGINE and kind == "torch") or code is _OUR_ENGINE:
            in_engine = True
            break
        if kind == "ours":
            if entered_replayable and code.co_name not in _TRANSPARENT:
                break
        elif kind == "owner" or code.co_filename in owners:
            break
        else:
            if kind != "torch":
                entered_replayable = True
                owner = code.co_qualname.rpartition(".")[0].rpartition(".")[2]
                library = kind == "library"
                reached_user = reached_user or not library
                # However deep a library is, the user's line that called it is kept.
                if len(found) < _MAX_FRAMES or not library:
                    found.append(UserFrame(code.co_filename, frame.f_lineno, code.co_name, library, owner.strip("<>")))
            elif code.co_filename.endswith("checkpoint.py"):
                recompute = recompute or code.co_name in ("recompute_fn", "unpack_hook", "backward")
        frame = frame.f_back
    return Stack(tuple(found), recompute and in_engine, in_engine)
