"""Compute one op, or one module, in float32.

What it sees
    A value that left the range of float16 in one op of the forward pass, or that of float8 in one cast.

Why it hurts
    Only this op needs the range; the rest of the model may stay in half precision.

Smallest example
    with torch.autocast("cuda", enabled=False):
        scores = q.float() @ k.float().transpose(-1, -2)
    # instead of
    scores = q @ k.transpose(-1, -2)  # in float16

What to do
    Wrap the line, or the module, so that it runs in float32, and let its result stay float32.

Safety
    Close: the same arithmetic with less rounding.

References
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.rules import Rule
from ...interventions.call_arguments import in_float32
from ...interventions.eight_bit_casts import left_out
from ...interventions.module_changes import UpcastModule
from ...replay.replay_step import ReplayChange
from ..remedy_context import Proposal, RemedyContext

RULE = Rule("RX102", "upcast_module", "Compute one op, or one module, in float32.")


def propose(context: RemedyContext) -> Iterator[Proposal]:
    origin = context.origin
    if context.cause == "fp8_overflow" and context.can_operate() and not context.silent:
        yield Proposal(
            code=RULE.code,
            slug="upcast_module",
            change="the cast to float8 left out",
            make=context.operation(left_out),
            safety="close",
        )
    if not context.fp16 or context.silent or origin is None or origin.phase not in ("forward", "loss", "backward"):
        return
    if context.can_operate():
        line = origin.code_line
        yield Proposal(
            code=RULE.code,
            slug="upcast_module",
            change=f"{context.call} in float32",
            make=context.operation(in_float32),
            safety="close",
            own_line=True,
            code_change=f'with torch.autocast("{context.replayable.facts.device_type}", enabled=False): {line}'
            if line
            else None,
        )
    if origin.module:
        name = origin.module

        def make() -> ReplayChange:
            return UpcastModule(name)

        yield Proposal(code=RULE.code, slug="upcast_module", change=f"{name} in float32", make=make, safety="close")
