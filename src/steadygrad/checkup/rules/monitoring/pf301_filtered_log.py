"""The log leaves NaN losses out.

What it sees
    `logging_nan_inf_filter`, which is on in transformers unless it is switched off.

Why it hurts
    A step whose loss is NaN is logged as the mean of the others, or as 0.0, while backward and the step still happen. A
    poisoned run shows a clean curve, and every alert on the logged loss stays silent.

Smallest example
    TrainingArguments(output_dir="out")  # logging_nan_inf_filter=True
    # fixed
    TrainingArguments(output_dir="out", logging_nan_inf_filter=False)

What to do
    `logging_nan_inf_filter=False`, and something that acts on a NaN, such as `sg.attach`.

Safety
    Changes what is logged and nothing else.

References
    https://github.com/huggingface/trl/issues/6702
    https://github.com/huggingface/transformers/pull/13619
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import setting
from ...inputs.run_settings import Settings

RULE = Rule("PF301", "filtered_log", "The log leaves NaN losses out.")


def of_settings(settings: Settings) -> Iterator[Advice]:
    """A note: the log hides the fault, and does not make it."""
    if settings.kind != "transformers":
        return
    asked = settings.on("logging_nan_inf_filter") and not settings.saved
    default = settings.complete and not settings.of_library and not settings.has("logging_nan_inf_filter")
    if asked or default or (settings.saved and settings.on("logging_nan_inf_filter")):
        yield setting(
            RULE, Level.NOTE, settings, "logging_nan_inf_filter",
            "a NaN loss is logged as if it had not happened", help="logging_nan_inf_filter=False",
        )  # fmt: skip


SPECIMENS = [
    {"output_dir": "x", "logging_nan_inf_filter": True},
    "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir='x')\n",
]
NEAR_MISSES = [
    """
from transformers import Trainer, TrainingArguments
class OurTrainer(Trainer):
    def __init__(self, model, args=None):
        super().__init__(model, TrainingArguments(output_dir="x") if args is None else args)
""",
    {"output_dir": "x", "logging_nan_inf_filter": False},
    "from transformers import TrainingArguments\nargs = TrainingArguments(**options)\n",
    {"lr": 1e-3},
]
