"""The regimes by name. `REGIMES[name](seed)` builds one; none of them goes wrong when it is left alone."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getmembers, isfunction
from types import ModuleType

from ..training import Training
from . import data, losses, models, moving, optimizers, rates, stateful

Build = Callable[[int], Training]


def _public(module: ModuleType) -> dict[str, Build]:
    """A module's builders in the order in which they are written."""
    found = {
        name: value
        for name, value in getmembers(module, isfunction)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }
    return dict(sorted(found.items(), key=lambda item: item[1].__code__.co_firstlineno))


REGIMES: dict[str, Build] = {
    **_public(data),
    **_public(losses),
    **_public(moving),
    **_public(stateful),
    **_public(rates),
    **_public(models),
    **_public(optimizers),
    **optimizers.OPTIMIZERS,
}
