"""Checkpoints are saved too rarely, or the only one is replaced unchecked.

What it sees
    Saving switched off, more than 5000 steps between saves, or space for a single checkpoint.

Why it hurts
    A run that turns NaN at step 92,000 can go back only as far as its last good checkpoint. With space for one, the
    first poisoned save deletes it.

Smallest example
    TrainingArguments("out", save_total_limit=1)
    # fixed
    TrainingArguments("out", save_steps=500, save_total_limit=3)

What to do
    Save every 500 to 1000 steps, keep at least three, and check what was saved: `steady scan`.

Safety
    A note: whether a run is long enough to miss an older checkpoint, and whether something else keeps one, is not shown
    by its settings.

References
    https://github.com/ultralytics/ultralytics/issues/24615
    https://github.com/huggingface/transformers/issues/25129
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import setting
from ...inputs.run_settings import Settings

RULE = Rule("PF304", "rare_checkpoints", "Checkpoints are saved too rarely, or the only one is replaced unchecked.")
MOST_STEPS = 5000
LONGER_THAN_RUNS = 100_000


def of_settings(settings: Settings) -> Iterator[Advice]:
    """The interval in steps alone; a share of the run (below 1) is left to the user."""
    if settings.kind not in ("transformers", "own"):
        return
    interval, kept = settings.number("save_interval"), settings.number("save_limit")
    off = settings.word("save_strategy") == "no"
    keeps_best = settings.has("load_best_model_at_end") and not settings.off("load_best_model_at_end")
    if kept == 1 and not off and not keeps_best and not _saves_once(settings):
        yield setting(
            RULE, Level.NOTE, settings, "save_limit", "a poisoned save deletes the only good checkpoint",
            help="save_total_limit=3, and steady scan before trusting one",
        )  # fmt: skip
    if off:
        yield setting(
            RULE, Level.NOTE, settings, "save_strategy", "nothing is saved: there is no checkpoint to restore",
            help='save_strategy="steps", save_steps=500',
        )  # fmt: skip
    elif interval is not None and interval > MOST_STEPS and settings.word("save_strategy") in ("", "steps"):
        yield setting(
            RULE,
            Level.NOTE,
            settings,
            "save_interval",
            f"{interval:g} steps may be lost",
            help="save every 500 to 1000 steps",
        )


def _saves_once(settings: Settings) -> bool:
    """An interval that no run reaches: the one save at the end deletes nothing."""
    interval = settings.number("save_interval")
    return interval is not None and interval >= LONGER_THAN_RUNS


SPECIMENS = [
    {"output_dir": "x", "save_total_limit": 1},
    {"output_dir": "x", "save_strategy": "no"},
    {"output_dir": "x", "save_steps": 50000},
    {"lr": 1e-4, "batch_size": 8, "checkpoint_every": 50000},
]
ONLY_NOTES = SPECIMENS
NEAR_MISSES = [
    """
from transformers import TrainingArguments
def main(num_val=2000):
    return TrainingArguments("out", save_total_limit=1, load_best_model_at_end=True if num_val > 0 else False)
""",
    {"lr": 1e-4, "batch_size": 8, "checkpoint_every": 1000},
    {"output_dir": "x", "save_total_limit": 3, "save_steps": 500},
    {"output_dir": "x", "save_total_limit": 1, "load_best_model_at_end": True},
    {"output_dir": "x", "save_total_limit": 1, "save_strategy": "epoch", "load_best_model_at_end": True},
    {"output_dir": "x", "save_strategy": "epoch"},
]
