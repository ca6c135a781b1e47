"""Ignoring warnings for a while without a trace."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_IGNORE = ("ignore", None, Warning, None, 0)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Inside, warnings are ignored. After `warnings.catch_warnings` Python forgets which warnings the program has shown
    already, and shows each of them once more; not after this."""
    module: Any = warnings
    filters, before, show = module.filters, list(module.filters), module.showwarning
    filters.insert(0, _IGNORE)
    try:
        yield
    finally:
        filters[:] = before
        module.filters, module.showwarning = filters, show
