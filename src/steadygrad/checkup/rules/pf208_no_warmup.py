"""Adam starts at a high learning rate without warm-up.

What it sees
    Adam with a rate of 1e-4 and above for a whole transformer, or 1e-3 and above for adapters, and warm-up nowhere.

Why it hurts
    In the first steps Adam's second moment rests on a handful of batches, so every step has full length in a poor
    direction. Large models leave the good region there and never come back.

Smallest example
    TrainingArguments(output_dir="out", learning_rate=5e-4)

What to do
    `warmup_ratio=0.03` or some hundred to 2000 `warmup_steps`.

Safety
    A note up to 1e-3 and for adapters: small models often get away with it.

References
    https://arxiv.org/abs/1908.03265
    https://arxiv.org/abs/2002.04745
"""

from __future__ import annotations

from collections.abc import Iterator

from ...records.checkup import Advice, Level
from ...rules import Rule
from ..advice import setting
from ..settings import Settings

RULE = Rule("PF208", "no_warmup", "Adam starts at a high learning rate without warm-up.")
FROM = {"whole": 1e-4, "lora": 1e-3}


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Only where all settings are written down, so that no warm-up means none."""
    rate = settings.number("learning_rate")
    if settings.kind != "transformers" or not settings.complete or not settings.adam or rate is None:
        return
    warm = [settings.values[path] for path in settings.keys("warmup")]
    if any(value not in (0, 0.0, None) for value in warm) or "warmup" in settings.word("lr_scheduler_type"):
        return
    if not settings.other_adapter and rate >= FROM["lora" if settings.lora else "whole"]:
        yield setting(
            RULE, Level.WARNING if rate > 1e-3 and not settings.lora else Level.NOTE, settings, "learning_rate",
            f"Adam starts at {rate:g} with no warm-up", help="warmup_ratio=0.03, or some hundred warmup_steps",
        )  # fmt: skip


SPECIMENS = [
    {"learning_rate": 5e-4, "output_dir": "x"},
    {"learning_rate": 5e-3, "output_dir": "x", "warmup_steps": 0},
    {"learning_rate": 2e-3, "output_dir": "x", "adapter": "lora"},
]
NEAR_MISSES = [
    {"learning_rate": 5e-4, "output_dir": "x", "warmup_ratio": 0.03},
    {"learning_rate": 2e-5, "output_dir": "x"},
    {"learning_rate": 2e-4, "output_dir": "x", "adapter": "lora"},
    {"learning_rate": 1e-3, "output_dir": "x", "optim": "adafactor"},
]
