"""Does a generic remedy really work on a case? Run the whole of its loop with it, as the protocol defines it."""

from __future__ import annotations

from typing import Any

import torch

from . import protocol

GENERIC = ("skip_batch", "clip", "zero_nan_grads", "drop_rows", "lr_down", "fp32", "bf16")
MAX_SKIPPED = 3


def works(module: Any, slug: str) -> bool | None:
    """True or False by running; None for a slug that needs the case's own code or does not apply."""
    truth = module.TRUTH
    if slug not in GENERIC:
        return None
    torch.manual_seed(0)
    case = module.make()
    policy: tuple[str, ...] = ()
    drop = None
    if slug in ("skip_batch", "clip", "zero_nan_grads"):
        policy = (slug,)
    elif slug == "drop_rows":
        if not truth["bad_rows"]:
            return None
        drop = {truth["first_bad_step"]: truth["bad_rows"]}
    elif slug == "lr_down":
        for group in case.optimizer.param_groups:
            group["lr"] *= 0.01
    elif case.autocast is None:
        return None
    else:
        case.autocast = torch.bfloat16 if slug == "bf16" else None
    try:
        log = protocol.train(case, policy=policy, drop=drop)
    except (RuntimeError, ValueError, AttributeError):
        return False
    return healthy(case, log, may_skip=slug == "skip_batch")


def healthy(case: Any, log: list[Any], *, may_skip: bool) -> bool:
    """Every loss and gradient finite (but for a few skipped), everything that lasts finite at the end."""
    if case.healthy is not None:
        return bool(case.healthy(log))
    skipped = [record for record in log if record.skipped]
    if may_skip and len(skipped) > MAX_SKIPPED:
        return False
    kept = [record for record in log if not (may_skip and record.skipped)]
    lasting = protocol.finite([*case.model.parameters(), *case.model.buffers(), *protocol.opt_state(case.optimizer)])
    return all(record.loss_ok and record.grad_ok for record in kept) and lasting
