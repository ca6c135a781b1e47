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
    """Inside, modules come from the standard library and the installed packages first. Afterwards a module that the
    program would have found elsewhere is not in `sys.modules`: we keep ours, and the program imports its own."""
    path, known = list(sys.path), set(sys.modules)
    first = _installed()
    sys.path[:] = [entry for entry in path if entry in first] + [entry for entry in path if entry not in first]
    try:
        yield
    finally:
        sys.path[:] = path
        new = {name.partition(".")[0] for name in set(sys.modules) - known} - {name.partition(".")[0] for name in known}
        for name in new:
            if _is_elsewhere(name):
                for module in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                    del sys.modules[module]


def _installed() -> set[str]:
    """The folders of the standard library, of torch (and so of what is installed with it), and our own."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    packages = os.path.dirname(os.path.dirname(os.path.abspath(getattr(sys.modules.get("torch"), "__file__", library))))
    return {library, os.path.join(library, "lib-dynload"), packages, _OURS}


def _is_elsewhere(name: str) -> bool:
    """Whether the program's own search path leads to another file than the module in memory was loaded from."""
    module: Any = sys.modules.get(name)
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return False
    found = PathFinder.find_spec(name)
    return found is not None and found.origin != origin
