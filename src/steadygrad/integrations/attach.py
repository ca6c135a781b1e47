"""attach(): guards a loop that other code owns. Which integration fits this object?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, overload

from ..detect.tensors.foreign_objects import isinstance
from ..records.errors import UsageError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..policy import Policy
    from .handle import GuardHandle
    from .optimizer.optimizer_guard import OptimizerGuard

logger = logging.getLogger("steadygrad")
# A class that the target is or descends from, and who looks after it. Told by name, so that nothing is imported that
# the user has not imported already.
_OWNERS = (
    ("transformers", "Trainer", "transformers", "attach_trainer"),
    ("lightning", "Trainer", "lightning", "attach_lightning"),
    ("pytorch_lightning", "Trainer", "lightning", "attach_lightning"),
    ("accelerate", "Accelerator", "accelerate", "attach_accelerator"),
    ("deepspeed", "DeepSpeedEngine", "deepspeed", "attach_deepspeed"),
)


@overload
def attach(
    target: Optimizer | Sequence[Optimizer],
    *,
    model: nn.Module | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    run_dir: Any = None,
    policy: str | Policy = "balanced",
    notify: Any = None,
    self_check: str | float | None = None,
) -> OptimizerGuard: ...
@overload
def attach(target: object, **options: Any) -> GuardHandle: ...
def attach(target: Any, **options: Any) -> Any:
    """Guard a loop that stays as it is.

        guard = sg.attach(trainer, run_dir="runs/sft")                # transformers, TRL, Lightning
        guard = sg.attach(accelerator, run_dir="runs/x")              # a loop of yours around an Accelerator
        guard = sg.attach(optimizer, model=model, run_dir="runs/x")   # any other loop
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()        # refused if the gradient is not finite
            optimizer.zero_grad()

    Args:
        target: a trainer, an Accelerator, a torch optimizer, or a list of optimizers.
        **options: those of the integration: `run_dir`, `policy` and more; see `docs/entry_points`.

    Returns:
        A GuardHandle: `incidents`, `summary()`, `settle()`, `close()`; used in a `with` it closes itself.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with sg.attach(optimizer, model=model) as guard:
        ...     for batch in (torch.ones(8, 4), torch.full((8, 4), float("nan"))):
        ...         model(batch).pow(2).mean().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> guard.summary()["applied"], guard.summary()["skipped"]
        (1, 1)
    """
    for package, name, room, function in _OWNERS:
        if any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(target).__mro__):
            return getattr(import_module(f"steadygrad.integrations.{room}"), function)(target, **options)
    from torch.optim import Optimizer

    targets = list(target) if isinstance(target, list | tuple) else [target]
    if targets and all(isinstance(each, Optimizer) for each in targets):
        from ..engine.config import check_options, check_scheduler
        from .optimizer.optimizer_guard import OptimizerGuard

        check_options(options, set(signature(OptimizerGuard).parameters) - {"optimizers"})
        check_scheduler(options.get("scheduler"))
        _check_model(targets, options.get("model"))
        return OptimizerGuard(targets, **options)
    raise UsageError(
        f"sg.attach does not know what to do with a {type(target).__name__}. It takes a transformers or Lightning "
        "Trainer, an Accelerator, a torch.optim.Optimizer or a list of them; for a loop of your own, "
        "sg.Guard(model, optimizer, loss_fn) does more."
    )


def _check_model(optimizers: Sequence[Optimizer], model: Any) -> None:
    """Say so where the model is not the one that is trained: its names and its state are of no use then."""
    if model is None:
        return
    if not callable(getattr(model, "parameters", None)):
        raise UsageError(f"model is a {type(model).__name__}, not a torch.nn.Module.")
    own = set(map(id, model.parameters()))
    if not any(id(p) in own for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]):
        logger.warning(
            "sg.attach(optimizer, model=model): none of the optimizer's parameters belongs to this %s, so tensors are "
            "called by their numbers, and what its forward changes is not restored. Give the model that is trained.",
            type(model).__name__,
        )
