"""A moment or another optimizer state is NaN or infinite.

What it sees
    A scan of the optimizer's state found values that are not finite: a moment, a running maximum, a momentum
    buffer.

Why it hurts
    The weights may still look fine, but the next update is computed from it, and so is every one after: an average
    never forgets a NaN.

Smallest example
    optimizer.state[weight]["exp_avg_sq"].fill_(float("inf"))
    # fixed
    optimizer.load_state_dict(last_good["optimizer"])

What to do
    The policy rolls back; without a snapshot it halts. If it comes from a resumed checkpoint, scan the checkpoint
    and rebuild the optimizer state.

Safety
    Rolling back restores the state bit for bit. Nothing is repaired in place: a moment that was replaced by a guess
    is still a guess.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

from ....policy import Policy
from ....records import Finding, Reading
from ....records.rules import Rule
from ...history import History
from ...make_finding import not_finite

RULE = Rule("SY106", "non_finite_optimizer_state", "A moment or another optimizer state is NaN or infinite.")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    """Host only; the names were found by whoever scanned the tensors."""
    return not_finite(RULE, reading, "optimizer state is", reading.bad_state)


def SPECIMEN() -> tuple[Reading, History]:
    return Reading(step=9, loss=1.0, grad_norm=1.0, bad_state=("head.weight/exp_avg_sq",)), History()


def NEAR_MISS() -> tuple[Reading, History]:
    """Only a buffer is bad, which the optimizer never reads."""
    return Reading(step=9, loss=1.0, grad_norm=1.0, bad_buffers=("bn.running_var",)), History()
