"""All living objects of a kind in the process, for a question that those of one training cannot answer."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from itertools import compress
from typing import Any, TypeVar

from torch import nn

Kind = TypeVar("Kind")


def living(kind: type[Kind]) -> list[Kind]:
    """Every object of this class or a class below it that the garbage collector knows. Not for every step."""
    return living_of(lambda each: issubclass(each, kind))


def living_of(wanted: Callable[[type], bool]) -> list[Any]:
    """Every object that the garbage collector knows and whose class is wanted.

    A process has millions of objects, so each one's class is asked for and compared without a Python call. Never asks
    for `__class__`: a lazy proxy would do work when asked.
    """
    objects = gc.get_objects()
    classes = list(map(type, objects))
    numbers = list(map(id, classes))  # a class may define what equality is, a number does not
    found = {number for number, each in dict(zip(numbers, classes, strict=True)).items() if wanted(each)}
    return list(compress(objects, map(found.__contains__, numbers)))


_compiled: dict[str, Any] = {"frames": 0, "found": []}


def compiled_around(model: nn.Module) -> list[nn.Module]:
    """The modules that `torch.compile(model)` returned for this model or for one that it is a part of. A walk over all
    objects where the compiler has seen new frames since the last one, else nothing."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    frames = sum((dynamo.counters.get("frames") or {}).values()) if dynamo is not None else 0
    if frames != _compiled["frames"]:
        kind: Any = sys.modules["torch._dynamo.eval_frame"].OptimizedModule
        _compiled.update(frames=frames, found=[weakref.ref(each) for each in living(kind)])
    found = [each for reference in _compiled["found"] if (each := reference()) is not None]
    return [each for each in found if any(part is model for part in each._modules["_orig_mod"].modules())]
