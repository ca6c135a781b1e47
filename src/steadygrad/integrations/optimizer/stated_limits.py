"""What `sg.attach(optimizer)` cannot do, as it is said at the start."""

from __future__ import annotations

NO_SELF_CHECK = "self_check: not possible here: sg.attach(optimizer) cannot run a step again"
_LIMITS = (
    "sg.attach(optimizer) refuses updates that are not finite; it does not diagnose them (`steady run train.py` does), "
    "report a divergence with finite values, or hold back a moving average that the loop updates. {skips}"
)
_SKIPS = (
    "A batch that the loop skips itself is counted if its loss is still in a variable, or if optimizer.zero_grad() "
    "clears its gradients."
)
_SKIPS_WITHOUT_MODEL = "A batch that the loop skips itself is counted if optimizer.zero_grad() clears its gradients."
_NO_MODEL = "Without model= running statistics and random numbers are not restored."


def limits(*, with_model: bool) -> str:
    """In a few short sentences."""
    if with_model:
        return _LIMITS.format(skips=_SKIPS)
    return f"{_LIMITS.format(skips=_SKIPS_WITHOUT_MODEL)} {_NO_MODEL}"
