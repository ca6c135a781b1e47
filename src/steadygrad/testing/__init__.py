"""Faults put into a run on purpose: does this loop survive a NaN gradient, a flipped bit, logits that are not finite?

    import steadygrad as sg
    with sg.testing.inject(model, at={5: "nan_gradient"}) as faults:      # at the sixth training pass
        train(model)
    with sg.testing.inject(model, rate=0.02, seed=0) as faults:           # or at random, by a seed
        train(model)
    print(faults.struck)

Names are resolved when first used: importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {"KINDS": "fault_kinds", "Faults": "inject_faults", "Strike": "inject_faults", "inject": "inject_faults"}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .fault_kinds import KINDS as KINDS
    from .inject_faults import Faults as Faults
    from .inject_faults import Strike as Strike
    from .inject_faults import inject as inject


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
