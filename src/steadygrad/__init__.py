"""steadygrad keeps a training run finite, finds out why it was not, and verifies the fix.

    import steadygrad as sg
    guard = sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0, run_dir="runs/demo")
    for batch in loader:
        outcome = guard.step(batch)

Importing this package does no work and imports no torch: the public names below are resolved when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "ActivationMonitorCallback": "integrations.hf.monitor_callbacks",
    "Decision": "records",
    "Diagnosis": "records",
    "Finding": "records",
    "GradientMonitorCallback": "integrations.hf.monitor_callbacks",
    "Guard": "integrations.guard",
    "GuardHandle": "integrations.handle",
    "Incident": "records",
    "Outcome": "records",
    "Policy": "policy",
    "SteadyError": "records.errors",
    "TrainingHalted": "records.errors",
    "UsageError": "records.errors",
    "attach": "integrations.attach",
    "diagnose": "diagnosis.lookup",
    "doctor": "checkup.doctor",
    "probe": "checkup.trials.probe",
    "selftest": "checkup.trials.selftest",
}
__all__ = sorted(_HOMES)
_PACKAGES = {"errors": "records.errors", "numerics": "numerics", "testing": "testing"}
"""Packages whose own public names are used through them: `sg.numerics.masked_mean`, `sg.errors.RanksError`."""

if TYPE_CHECKING:
    from . import numerics as numerics
    from . import testing as testing
    from .checkup.doctor import doctor as doctor
    from .checkup.trials.probe import probe as probe
    from .checkup.trials.selftest import selftest as selftest
    from .diagnosis.lookup import diagnose as diagnose
    from .integrations.attach import attach as attach
    from .integrations.guard import Guard as Guard
    from .integrations.handle import GuardHandle as GuardHandle
    from .integrations.hf.monitor_callbacks import ActivationMonitorCallback as ActivationMonitorCallback
    from .integrations.hf.monitor_callbacks import GradientMonitorCallback as GradientMonitorCallback
    from .policy import Policy as Policy
    from .records import Decision as Decision
    from .records import Diagnosis as Diagnosis
    from .records import Finding as Finding
    from .records import Incident as Incident
    from .records import Outcome as Outcome
    from .records import errors as errors
    from .records.errors import SteadyError as SteadyError
    from .records.errors import TrainingHalted as TrainingHalted
    from .records.errors import UsageError as UsageError


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"{__name__}.{_PACKAGES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext steadygrad` in a notebook: every training loop of the session is guarded. See `%steady`."""
    import_module(f"{__name__}.integrations.zero_code.notebook").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext steadygrad`: torch as it was."""
    import_module(f"{__name__}.integrations.zero_code.notebook").unload(shell)
