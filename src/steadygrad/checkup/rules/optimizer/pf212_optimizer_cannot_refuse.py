"""The optimizer cannot refuse an update on the device.

What it sees
    On CUDA, an optimizer that is not SGD, Adam or AdamW with `fused=True` in every group.

Why it hurts
    Where the kernel can refuse, a guard costs no synchronisation. Everywhere else the host must read one number before
    every step, which leaves the device idle for that moment.

Smallest example
    torch.optim.AdamW(model.parameters())  # without fused=True
    # fixed
    torch.optim.AdamW(model.parameters(), fused=True)

What to do
    `torch.optim.AdamW(model.parameters(), fused=True)`.

Safety
    A note: bad updates are refused either way. Fused kernels round differently in the last bit.

References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
    https://github.com/huggingface/transformers/issues/33693
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about
from ...inputs.facts import ParameterFacts, Setup

RULE = Rule("PF212", "optimizer_cannot_refuse", "The optimizer cannot refuse an update on the device.")


def of_setup(setup: Setup) -> Iterator[Advice]:
    """Only on CUDA: reading a number of a CPU costs nothing."""
    if setup.on_cuda and setup.cannot_refuse:
        yield about(
            RULE, Level.NOTE, "optimizer", f"one host read a step is needed: {setup.cannot_refuse[0]}",
            help="fused=True, with SGD, Adam or AdamW",
        )  # fmt: skip


_W = (ParameterFacts(name="w"),)
SPECIMENS = [Setup(parameters=_W, on_cuda=True, cannot_refuse=("it was not made with fused=True",))]
NEAR_MISSES = [
    Setup(parameters=_W, on_cuda=False, cannot_refuse=("it was not made with fused=True",)),
    Setup(parameters=_W, on_cuda=True),
]
