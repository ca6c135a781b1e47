"""Known trainers: where a program uses one, `sg.attach` guards it instead of the watch.

Each library is met when it has been imported. A trainer whose integration is missing or refuses this set-up stays with
the watch, and this is reported once.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ....detect.tensors.foreign_objects import getattr, hasattr
from ....records.errors import SteadyError, UsageError
from ...loops.patching import Patches
from ..launch.import_hook import when_imported

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

# (module, class, the method that starts training, our integration)
_TRAINERS = (
    ("transformers.trainer", "Trainer", "train", "transformers"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "fit", "lightning"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "fit", "lightning"),
)
_MARK = "_steadygrad_attached"


def wait_for_trainers(watch: ProcessLoop) -> None:
    """One hook a library, run after its own import."""
    patches = Patches()
    for module, kind, start, integration in _TRAINERS:
        when_imported(module, functools.partial(_meet, watch, patches, kind, start, integration))
    when_imported("accelerate.accelerator", lambda found: _meet_accelerator(watch, patches, found))
    when_imported("accelerate.optimizer", lambda found: _meet_accelerated_optimizer(watch, patches, found))


def _meet(watch: ProcessLoop, patches: Patches, name: str, start: str, integration: str, module: Any) -> None:
    kind = getattr(module, name, None)
    if kind is None or find_spec(f"steadygrad.integrations.{integration}") is None:
        return

    def begin(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        # From here to the end of training, so that the next trainer of the program can go on with the same run.
        ours = watch.away or watch.inside_trainer or _steps_by_itself(args, kwargs)
        guard = attach_to(watch, self) if not ours else None
        watch.inside_trainer += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.inside_trainer -= 1
            if guard is not None:
                watch.ledger.guard_done(guard)
                object.__setattr__(self, _MARK, False)

    patches.around(kind, start, begin)


def _steps_by_itself(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether training starts on a module of Lightning with manual optimization: the trainer knows nothing of its steps
    then, and the watch, which sees their lines, can say more."""
    first = args[0] if args else kwargs.get("model")
    return getattr(first, "automatic_optimization", True) is False


def _meet_accelerator(watch: ProcessLoop, patches: Patches, module: Any) -> None:
    kind = getattr(module, "Accelerator", None)
    if kind is None or find_spec("steadygrad.integrations.accelerate") is None:
        return

    def prepare(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        # A trainer prepares its own Accelerator, and is looked after as a trainer.
        models, optimizers = getattr(self, "_models", None), getattr(self, "_optimizers", None)
        if not watch.inside_trainer and models and optimizers and _computes_its_loss(models[0]):
            attach_to(watch, self)
        return result

    patches.around(kind, "prepare", prepare)


def _computes_its_loss(model: Any) -> bool:
    """Whether the model returns the loss that the loop trains on, as those of transformers do: then the whole step can
    be run again. Around any other model the watch itself can say more."""
    inside = getattr(model, "module", model)
    return any(kind.__name__ == "PreTrainedModel" for kind in type(inside).__mro__)


def _meet_accelerated_optimizer(watch: ProcessLoop, patches: Patches, module: Any) -> None:
    """Set Accelerate's own flag for an update that was not applied: its scheduler waits, and so does a Trainer's."""
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


def attach_to(watch: ProcessLoop, trainer: Any) -> Any:
    """Guard one trainer, once; None where it is not. A guard of the script's own comes first."""
    if getattr(trainer, _MARK, False):
        return None
    settings = watch.settings
    wishes: dict[str, Any] = {
        "run_dir": settings.run_dir,
        "policy": settings.policy,
        "diagnose": settings.diagnose,
        "batch_key": watch.name_of_batch,
    }
    if settings.notify:
        wishes["notify"] = settings.notify
    try:
        object.__setattr__(trainer, _MARK, True)
        guard = _attach(trainer, wishes)
    except (SteadyError, ImportError, AttributeError, TypeError) as error:
        if "already" not in str(error):
            watch.ledger.tell("trainer", f"this {type(trainer).__name__} is guarded at its optimizer only: {error}")
        return None
    watch.ledger.guards.append(guard)
    return guard


def _attach(trainer: Any, wishes: dict[str, Any]) -> Any:
    """`attach` with as many of the wishes as this integration knows."""
    from ...attach import attach

    for optional in ("notify", "batch_key", "diagnose", None):
        try:
            return attach(trainer, **wishes)
        except (UsageError, TypeError) as error:
            if optional is None or not any(name in str(error) for name in ("notify", "batch_key", "diagnose")):
                raise
            wishes.pop(optional, None)
    raise AssertionError("the last try returns or raises")
