"""What this integration needs of transformers and accelerate, by version and by feature, in one place."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from ...detect.tensors.foreign_objects import getattr, hasattr
from ...engine.fault_barrier import listener
from ...records.errors import UsageError

_NEEDED = {"transformers": (5, 0), "accelerate": (1, 10)}
_OPTIONS = ("run_dir", "diagnose", "capsule", "capsule_bytes", "snapshots", "batch_key", "extra_state", "notify")
_OTHER_ENGINES = ("MEGATRON_LM", "XLA", "TP")
# These step inside backward, one parameter at a time: by the time a step can be judged half of it has been applied.
_STEPS_IN_BACKWARD = re.compile("lomo|layerwise")


def check_versions() -> None:
    """One sentence where a library is older than what this was built on."""
    for name, needed in _NEEDED.items():
        found = importlib.metadata.version(name)
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if numbers < needed:
            wanted = ".".join(map(str, needed))
            raise UsageError(
                f"sg.attach(trainer) needs {name} {wanted} or newer, and {found} is installed. "
                f"Upgrade with: pip install '{name}>={wanted}'."
            )


def check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(
                f"sg.attach(trainer) has no option {name!r}. It takes policy, log_metrics, {', '.join(_OPTIONS)}; "
                "optimizer, schedule, clipping, precision and accumulation are the trainer's own."
            )


def why_only_watch(trainer: Any) -> str | None:
    """Why an update of this trainer cannot be refused, in words, or None."""
    accelerator = trainer.accelerator
    kind = str(getattr(accelerator, "distributed_type", "")).rpartition(".")[2].upper()
    if getattr(trainer, "is_deepspeed_enabled", False) or kind == "DEEPSPEED":
        return "DeepSpeed makes its update inside backward and refuses overflows by itself"
    if getattr(trainer, "is_fsdp_enabled", False) or kind == "FSDP":
        return "FSDP through a Trainer keeps its weights and gradients in shards that accelerate alone assembles"
    if kind in _OTHER_ENGINES:
        return f"{kind} has its own training step"
    if _STEPS_IN_BACKWARD.search(str(trainer.args.optim).lower()):
        return f"The optimizer {str(trainer.args.optim).rpartition('.')[2]} makes its update inside backward"
    return None


def lifecycle_callback(
    begins: Callable[[Any], None], ends: Callable[[], None], failed: Callable[[Exception], None]
) -> Any:
    """A callback that tells when `train()` has its optimizer ready and when it is done."""
    from transformers.trainer_callback import TrainerCallback

    begins, ends = listener(begins, failed), listener(ends, failed)

    class SteadyCallback(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            begins(model)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends()

    return SteadyCallback()


def world_size(trainer: Any) -> int:
    return int(getattr(trainer.accelerator, "num_processes", 1))


def is_training(trainer: Any) -> bool:
    """Whether `train()` is under way and past the making of its optimizer."""
    return bool(getattr(trainer, "is_in_train", False)) and hasattr(trainer.optimizer, "step_was_skipped")


def training_model(trainer: Any) -> nn.Module:
    """What `training_step` is given: the model as accelerate prepared it, compiled or wrapped."""
    model: nn.Module = trainer.model_wrapped if trainer.model_wrapped is not None else trainer.model
    return model


def inner_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's."""
    while hasattr(optimizer, "step_was_skipped") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def scaler_of(trainer: Any) -> Any:
    """The GradScaler that accelerate uses, if any."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    return scaler if scaler is not None and scaler.is_enabled() else None


def mark_skip(trainer: Any, *, skipped: bool) -> None:
    """Accelerate's own flag for a step that was not applied: Trainer holds its schedule by it.

    Without a loss scale accelerate never resets it, so it is set both ways. With a fused optimizer and a loss scale
    accelerate says "not skipped" for a step that was; the flag is then simply true again.
    """
    if skipped or scaler_of(trainer) is None:
        trainer.optimizer._is_overflow = skipped


def clear_skip(trainer: Any) -> None:
    if hasattr(trainer.optimizer, "_is_overflow"):
        trainer.optimizer._is_overflow = False


def generates(trainer: Any) -> bool:
    """Whether this trainer samples its own batches: GRPO, RLOO, distillation."""
    return hasattr(trainer, "_buffered_inputs")


def centres_its_rewards(trainer: Any) -> bool:
    """Whether the loss is made of advantages that are centred in groups of completions, as GRPO's and RLOO's.

    It is zero by construction then, and how high it stands says nothing.
    """
    return hasattr(trainer, "reward_funcs") and hasattr(trainer, "num_generations")


def shares_a_generation(trainer: Any) -> bool:
    """Whether what one window samples is used by others too, so that it cannot be given back with that window."""
    if not generates(trainer):
        return False
    window = int(trainer.args.gradient_accumulation_steps)
    steps = getattr(trainer.args, "steps_per_generation", None) or window
    return int(steps) * int(getattr(trainer, "num_iterations", 1)) > window
