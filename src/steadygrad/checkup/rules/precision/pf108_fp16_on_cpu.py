"""fp16 is asked for on a CPU.

What it sees
    fp16 together with a switch that keeps the run on the CPU.

Why it hurts
    transformers ignores it silently: the run is in float32, or loses the loss scale, and a test of the fp16 path
    tests nothing.

Smallest example
    TrainingArguments(output_dir="out", use_cpu=True, fp16=True)
    # fixed
    TrainingArguments(output_dir="out", use_cpu=True, bf16=True)

What to do
    Use bf16 on a CPU, or drop fp16 there.

Safety
    A note only: training is healthy, it is just not what was asked for.

References
    https://docs.pytorch.org/docs/stable/amp.html#cpu-op-specific-behavior
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import setting
from ...inputs.run_settings import Settings

RULE = Rule("PF108", "fp16_on_cpu", "fp16 is asked for on a CPU.")


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Only where the settings themselves keep it on the CPU."""
    on_cpu = settings.on("use_cpu") or settings.on("no_cuda") or (
        settings.kind == "lightning" and settings.word("accelerator") == "cpu"
    )  # fmt: skip
    if settings.half and on_cpu:
        yield setting(
            RULE, Level.NOTE, settings, "fp16", "fp16 is ignored or refused on a CPU", help="use bf16 on a CPU"
        )


SPECIMENS = [{"use_cpu": True, "fp16": True, "output_dir": "x"}]
NEAR_MISSES = [{"use_cpu": True, "bf16": True, "output_dir": "x"}, {"use_cpu": False, "fp16": True, "output_dir": "x"}]
