"""Import our dependencies without taking a name from the program.

A program may have a `secrets.py` or a `statistics.py` beside its script. Python finds that one first, so an import of
ours would run it too early; and a standard module that we had imported before it would be found in its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import Any

_OURS = str(Path(__file__).resolve().parents[4])


@contextmanager
def own_imports() -> Iterator[None]:
    """Inside, modules come from the standard library and the installed packages first, in the program's order.
    Afterwards a module that the program would have found elsewhere is not in `sys.modules`: we keep ours, and the
    program imports its own."""
    path, known = list(sys.path), set(sys.modules)
    sys.path[:] = sorted(path, key=lambda entry: not _holds_installed(entry))
    try:
        yield
    finally:
        sys.path[:] = path
        new = {name.partition(".")[0] for name in set(sys.modules) - known} - {name.partition(".")[0] for name in known}
        for name in new:
            if _is_elsewhere(name):
                for module in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                    del sys.modules[module]


def _holds_installed(entry: str) -> bool:
    """Whether a folder of the search path is the standard library's, our own, or one that packages are installed to."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    if entry in (library, os.path.join(library, "lib-dynload"), _OURS):
        return True
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(entry or "."))
    except OSError:
        return False


def _is_elsewhere(name: str) -> bool:
    """Whether the program's own search path leads to another file than the module in memory was loaded from."""
    module: Any = sys.modules.get(name)
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return False
    found = PathFinder.find_spec(name)
    return found is not None and found.origin != origin
