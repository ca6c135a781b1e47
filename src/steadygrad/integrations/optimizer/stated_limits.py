"""What `sg.attach(optimizer)` cannot do, as it is said at the start."""

from __future__ import annotations

NO_SELF_CHECK = "self_check: not possible here: sg.attach(optimizer) cannot run a step again"
_LIMITS = (
    "sg.attach(optimizer): incidents are not diagnosed, a divergence with finite values is not reported, and a moving "
    "average that the loop updates is not held back; a batch that the loop skips itself is seen by {skips} only"
)
_SKIPS = "its loss in a variable, or by optimizer.zero_grad(),"
_SKIPS_WITHOUT_MODEL = "optimizer.zero_grad()"
_NO_MODEL = "without model= running statistics and random numbers are not restored"


def limits(*, with_model: bool) -> str:
    """In one line."""
    if with_model:
        return _LIMITS.format(skips=_SKIPS)
    return f"{_LIMITS.format(skips=_SKIPS_WITHOUT_MODEL)}; {_NO_MODEL}"
