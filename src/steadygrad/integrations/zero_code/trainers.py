"""Known trainers: where a program uses one, `sg.attach` is applied at full strength instead of the watch's own seam.

Each library is met when it has been imported, by a hook of its own. A trainer whose integration is not there or that
refuses this set-up stays with the watch, and that is said once.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import wrapt

from ...errors import SteadyError, UsageError
from ..patching import Patches

if TYPE_CHECKING:
    from .watch import Watch

# (module, class, the method that starts training, our integration)
_TRAINERS = (
    ("transformers.trainer", "Trainer", "train", "transformers"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "fit", "lightning"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "fit", "lightning"),
)
_MARK = "_steadygrad_attached"


def wait_for_trainers(watch: Watch) -> None:
    """One hook a library, run after its own import."""
    patches = Patches()
    for module, kind, start, room in _TRAINERS:
        _when(module, lambda found, k=kind, s=start, r=room: _meet(watch, patches, getattr(found, k, None), s, r))
    _when("accelerate.accelerator", lambda found: _meet_accelerator(watch, patches, found))
    _when("accelerate.optimizer", lambda found: _meet_accelerated_optimizer(watch, patches, found))


def _when(module: str, act: Any) -> None:
    wrapt.when_imported(module)(act)


def _meet(watch: Watch, patches: Patches, kind: Any, start: str, room: str) -> None:
    if kind is None or find_spec(f"steadygrad.integrations.{room}") is None:
        return

    def begin(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.away:
            attach_to(watch, self)
        watch.inside_trainer += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.inside_trainer -= 1

    patches.around(kind, start, begin)


def _meet_accelerator(watch: Watch, patches: Patches, module: Any) -> None:
    kind = getattr(module, "Accelerator", None)
    if kind is None or find_spec("steadygrad.integrations.accelerate") is None:
        return

    def prepare(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        # A trainer prepares an Accelerator of its own, and is looked after as a trainer.
        if not watch.inside_trainer and getattr(self, "_models", None) and getattr(self, "_optimizers", None):
            attach_to(watch, self)
        return result

    patches.around(kind, "prepare", prepare)


def _meet_accelerated_optimizer(watch: Watch, patches: Patches, module: Any) -> None:
    """Tell Accelerate in its own words that an update did not land: its schedule holds, and so does a Trainer's."""
    kind = getattr(module, "AcceleratedOptimizer", None)
    if kind is None:
        return

    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        before = watch.step
        result = original(self, *args, **kwargs)
        if watch.step != before and hasattr(self, "_is_overflow") and getattr(self, "scaler", None) is None:
            self._is_overflow = watch.followers.refused(self.optimizer)
        return result

    patches.around(kind, "step", step)


def attach_to(watch: Watch, trainer: Any) -> None:
    """Guard one trainer, once. The script's own guard comes first."""
    if getattr(trainer, _MARK, False):
        return
    from ...attach import attach

    try:
        object.__setattr__(trainer, _MARK, True)
        guard = attach(trainer, run_dir=watch.settings.run_dir, policy=watch.settings.policy)
    except UsageError as error:
        if "already" not in str(error):
            watch.ledger.tell("trainer", f"this {type(trainer).__name__} is guarded at its optimizer only: {error}")
        return
    except (SteadyError, ImportError, AttributeError, TypeError) as error:
        watch.ledger.tell("trainer", f"this {type(trainer).__name__} is guarded at its optimizer only: {error}")
        return
    watch.ledger.guards.append(guard)
