"""An adapter is evaluated without `label_names`.

What it sees
    PEFT with a plain `Trainer` that evaluates, and no `label_names` in its arguments.

Why it hurts
    A PeftModel hides the arguments of the model inside. Before transformers 4.54 the Trainer then finds no labels, so
    evaluation has no loss, and `metric_for_best_model="eval_loss"` fails hours into the run.

Smallest example
    Trainer(model=get_peft_model(model, config), args=TrainingArguments("out", eval_strategy="epoch"))
    # fixed
    TrainingArguments("out", eval_strategy="epoch", label_names=["labels"])

What to do
    `label_names=["labels"]` in the arguments.

Safety
    A note: newer versions look inside by themselves, and naming the labels does no harm there.

References
    https://github.com/huggingface/transformers/issues/33420
    https://github.com/huggingface/transformers/pull/39265
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import setting
from ...inputs.run_settings import Settings

RULE = Rule("PF302", "peft_without_label_names", "An adapter is evaluated without `label_names`.")


def of_settings(settings: Settings) -> Iterator[Advice]:
    """TRL's own trainers set the names themselves."""
    if settings.kind != "transformers" or settings.saved or not settings.complete or not settings.lora:
        return
    strategies = [settings.word(name) for name in ("eval_strategy", "evaluation_strategy")]
    evaluates = any(word not in ("", "no", "unknown") for word in strategies) or settings.on("load_best_model_at_end")
    plain = settings.script is None or bool(settings.script.called & {"Trainer", "Seq2SeqTrainer"})
    if evaluates and plain and settings.get("label_names") is None:
        yield setting(
            RULE, Level.NOTE, settings, "label_names", "with an adapter, evaluation may find no labels and no loss",
            help='label_names=["labels"]',
        )  # fmt: skip


_SCRIPT = """
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments
model = get_peft_model(model, LoraConfig())
args = TrainingArguments(output_dir="x", eval_strategy="epoch"{extra})
Trainer(model=model, args=args)
"""
SPECIMENS = [
    _SCRIPT.format(extra=""),
    {"output_dir": "x", "adapter": "lora", "eval_strategy": "steps"},
]
NEAR_MISSES = [
    _SCRIPT.format(extra=", label_names=['labels']"),
    _SCRIPT.format(extra="").replace("epoch", "no"),
    _SCRIPT.format(extra="").replace("Trainer(model", "SFTTrainer(model"),
    {"output_dir": "x", "eval_strategy": "steps"},
]
