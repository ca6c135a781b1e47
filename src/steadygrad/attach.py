"""attach(): guards a loop that somebody else owns. Which integration fits this object?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from .integrations.optimizer import OptimizerGuard


def attach(target: Any, **options: Any) -> OptimizerGuard:
    """Guard a loop that stays as it is.

        guard = sg.attach(optimizer, model=model, run_dir="runs/x")
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()        # refused if the gradient is not finite
            optimizer.zero_grad()

    Args:
        target: a torch optimizer, or a list of several.
        **options: see `steadygrad.integrations.optimizer.OptimizerGuard`.
    """
    from torch.optim import Optimizer

    targets = list(target) if isinstance(target, list | tuple) else [target]
    if targets and all(isinstance(each, Optimizer) for each in targets):
        from .integrations.optimizer import OptimizerGuard

        return OptimizerGuard(targets, **options)
    kind = type(target).__name__
    raise UsageError(
        f"sg.attach does not know what to do with a {kind}. It takes a torch.optim.Optimizer or a list of them; for a "
        "loop of your own, sg.Guard(model, optimizer, loss_fn) does more."
    )
