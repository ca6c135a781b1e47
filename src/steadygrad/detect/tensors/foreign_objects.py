"""Looking at objects of the program that may not want to be looked at.

`isinstance` asks an object for its `__class__` when its type is no answer yet. A weak reference whose object is gone
raises there, a proxy outside of its context too, and a lazy one does its work. A walk over what the program holds
imports these in place of Python's own: they ask the type, and take an object that raises as one without the attribute.
"""

from __future__ import annotations

import builtins
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from builtins import getattr as getattr
    from builtins import hasattr as hasattr
    from builtins import isinstance as isinstance
else:

    def isinstance(value, kinds):
        """Whether the type of a value is one of these. A tensor is asked itself: any may be a parameter."""
        kind = type(value)
        return issubclass(kind, kinds) or (issubclass(kind, Tensor) and builtins.isinstance(value, kinds))

    def getattr(value, name, *default):
        """The attribute; the default also where asking for it raises."""
        try:
            return builtins.getattr(value, name)
        except Exception:
            if not default:
                raise
            return default[0]

    def hasattr(value, name):
        """Whether there is such an attribute and it can be had."""
        try:
            builtins.getattr(value, name)
        except Exception:
            return False
        return True


TENSORS = frozenset({Tensor, nn.Parameter})
"""The usual classes of tensors: a walk at every step compares with these first."""


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether this is a tensor that may be asked about itself. One whose class forbids that is no tensor to us."""
    if type(value) in TENSORS:
        return True
    if not issubclass(type(value), Tensor):
        return False
    try:
        return bool(value.numel() >= 0)
    except Exception:
        return is_lazy(value)  # it has no data yet


def values_in(value: Any, most: int | None = None) -> list[Any]:
    """The values of something like a dictionary, or the first of them; none where it does not give them."""
    try:
        return list(islice(value.values(), most))
    except Exception:
        return []


def items_in(value: Any) -> list[tuple[Any, Any]]:
    """The pairs of something like a dictionary; none where it does not give them."""
    try:
        return [(key, item) for key, item in value.items()]
    except Exception:
        return []
