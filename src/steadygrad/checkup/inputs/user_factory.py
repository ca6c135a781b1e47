"""From the words of a command line to the user's own objects: `module:function` or `path.py:function`.

Only what is named is imported. Imports no torch by itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ...records.errors import UsageError

WHAT_TO_WRITE = (
    "write a function without arguments that makes your objects and ends in "
    "`return model, optimizer, loss_fn, batches`, where loss_fn(model, batch) gives the loss "
    "and batches is any iterable, and name it: "
)
NAMES = ("model", "optimizer", "loss_fn", "batches")


def load_factory(words: str) -> Callable[[], Any]:
    """The function behind the words; a sentence that says what to write if there is none."""
    place, colon, name = words.rpartition(":")
    if not colon or not name.isidentifier():
        bare = words if not colon else place
        is_script = bare.endswith(".py")
        what = (
            f"{bare} is a script, and which of its objects are meant is not known"
            if is_script
            else f"{words!r} names no function"
        )
        example = f"{bare}:make" if is_script else "train.py:make or package.module:make"
        raise UsageError(f"{what}: {WHAT_TO_WRITE}{example}")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{place} has no function {name}; {WHAT_TO_WRITE}{place}:{name}")
    found: Callable[[], Any] = function
    return found


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported.")
    # A script finds the modules beside it, as it does when it is run.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    return _ran(str(path), lambda: spec.loader.exec_module(module), module)  # type: ignore[union-attr]


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} is no module: {WHAT_TO_WRITE}train.py:make or package.module:make")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: list[ModuleType] = []
    return _ran(name, lambda: found.append(import_module(name)), found)


def _ran(name: str, load: Callable[[], Any], module: ModuleType | list[ModuleType]) -> ModuleType:
    try:
        load()
    except SystemExit as stop:
        raise UsageError(
            f"Importing {name} ended the program (exit {stop.code}): keep its main under __main__."
        ) from None
    except Exception as error:
        raise UsageError(f"Importing {name} raised {type(error).__name__}: {error}") from error
    return module[0] if isinstance(module, list) else module


def make_objects(function: Callable[[], Any], words: str, *, needs: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """What the function returns, by name: a mapping, or a tuple in the order model, optimizer, loss_fn, batches."""
    try:
        answer = function()
    except Exception as error:
        raise UsageError(f"{words} raised {type(error).__name__}: {error}") from error
    if isinstance(answer, Mapping):
        found = {str(key): value for key, value in answer.items()}
    elif isinstance(answer, tuple | list) and len(answer) in (3, 4):
        found = dict(zip(NAMES if len(answer) == 4 else ("model", "loss_fn", "batches"), answer, strict=True))
    else:
        raise UsageError(f"{words} returned {type(answer).__name__}: {WHAT_TO_WRITE}{words}")
    if missing := [name for name in needs if name not in found]:
        raise UsageError(f"{words} returned no {' and no '.join(missing)}: {WHAT_TO_WRITE}{words}")
    return found
