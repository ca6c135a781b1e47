"""fp16 and bf16 are both switched on.

What it sees
    A configuration, a saved TrainingArguments or a call that sets both.

Why it hurts
    The two exclude each other. transformers and DeepSpeed refuse to start; other programs take one of them and do not
    say which.

Smallest example
    TrainingArguments(output_dir="out", fp16=True, bf16=True)
    # fixed
    TrainingArguments(output_dir="out", bf16=True)

What to do
    Keep bf16 where the hardware has it (Ampere and later, TPU), else fp16.

Safety
    None needed: one of the two is ignored at best. A note for other programs, which may mean something else by them.

References
    https://github.com/shibing624/MedicalGPT/issues/451
    https://github.com/hiyouga/LlamaFactory/issues/710
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import setting
from ...inputs.run_settings import Settings

RULE = Rule("PF103", "fp16_and_bf16", "fp16 and bf16 are both switched on.")


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Only literal switches; `auto` is left to the program."""
    level = Level.ERROR if settings.kind in ("transformers", "deepspeed") else Level.NOTE
    if settings.on("fp16") and settings.on("bf16") and _sections(settings, "fp16") & _sections(settings, "bf16"):
        yield setting(
            RULE, level, settings, "fp16", "fp16 and bf16 are both on, and they exclude each other",
            help="keep bf16 where the hardware has it, else fp16",
        )  # fmt: skip


def _sections(settings: Settings, name: str) -> set[tuple[str, ...]]:
    """The sections in which a switch stands: one of DeepSpeed's and one of the program do not exclude each other."""
    plain = {path[:-1] for path in settings.keys(name)}
    return plain | {path[:-2] for path in settings.values if path[-2:] == (name, "enabled")}


SPECIMENS = [
    {"fp16": True, "bf16": True},
    {"fp16": {"enabled": True}, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}},
    "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir='x', fp16=True, bf16=True)\n",
]
WARNINGS = SPECIMENS[1:]
ONLY_NOTES = SPECIMENS[:1]
NEAR_MISSES = [
    {"fp16": True, "deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}, "output_dir": "x"},
    {"fp16": False, "bf16": True},
    {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}},
    "from transformers import TrainingArguments\nargs = TrainingArguments(fp16=not ok(), bf16=ok())\n",
]
