"""The learning rate is outside what works for this kind of training.

What it sees
    A rate of zero or below; above 1e-3 for a whole pretrained model with Adam; outside 1e-6 to 5e-3 for adapters. A
    model made from a configuration is not a pretrained one.

Why it hurts
    Too high and the loss diverges within a few hundred steps, often as NaN; too low and the run is wasted.

Smallest example
    TrainingArguments(output_dir="out", learning_rate=2e-2)  # meant 2e-5

What to do
    1e-5 to 5e-5 for a whole pretrained model, 1e-4 to 3e-4 for LoRA, and a warm-up.

Safety
    Wide limits on purpose: only slips of the decimal point are reported.

References
    https://arxiv.org/abs/2106.09685
    https://github.com/huggingface/peft/issues/1522
"""

from __future__ import annotations

from collections.abc import Iterator

from ...records.checkup import Advice, Level
from ...rules import Rule
from ..advice import about, setting
from ..facts import GroupFacts, Setup
from ..settings import Settings

RULE = Rule("PF209", "learning_rate_out_of_range", "The learning rate is outside what works for this training.")


def wrong(rate: float, *, lora: bool, pretrained: bool) -> str:
    """Why a rate cannot be right; "" if it may be."""
    if rate <= 0:
        return f"a learning rate of {rate:g} learns nothing"
    if lora:
        low, high = 1e-6, 5e-3
    elif pretrained:
        low, high = 1e-9, 1e-3
    else:
        return ""
    what = "LoRA" if lora else "a whole pretrained model"
    return (
        ""
        if low <= rate <= high
        else f"a learning rate of {rate:g} is too {'low' if rate < low else 'high'} for {what}"
    )


def of_settings(settings: Settings) -> Iterator[Advice]:
    """A pretrained model is one that the settings or their script name."""
    rate = settings.number("learning_rate")
    if rate is None or not settings.adam or (settings.other_adapter and rate > 0):
        return
    pretrained = isinstance(settings.get("model"), str) or (
        settings.script is not None and "from_pretrained" in settings.script.called
    )
    if why := wrong(rate, lora=settings.lora, pretrained=pretrained):
        yield setting(
            RULE,
            Level.WARNING,
            settings,
            "learning_rate",
            why,
            help="1e-5 to 5e-5 for whole models, 1e-4 to 3e-4 for LoRA",
        )


def of_setup(setup: Setup) -> Iterator[Advice]:
    """Low rates are not judged live: a warm-up starts at zero."""
    for number, group in enumerate(setup.groups):
        if group.lr is None or group.lr <= 0 or not group.adam or setup.peft_type not in ("", "LORA"):
            continue
        why = wrong(group.lr, lora=setup.peft, pretrained=setup.pretrained)
        if why and "high" in why:
            yield about(
                RULE, Level.WARNING, f"{group.kind} group {number}", why, help="check the exponent", lr=group.lr
            )


SPECIMENS = [
    {"learning_rate": 2e-2, "output_dir": "x", "model_name_or_path": "gpt2"},
    {"learning_rate": 1e-8, "output_dir": "x", "adapter": "lora", "base_model": "gpt2"},
    {"learning_rate": 0, "output_dir": "x"},
    Setup(model_type="llama", pretrained=True, groups=(GroupFacts(lr=0.02),)),
]
NEAR_MISSES = [
    {"learning_rate": 2e-5, "output_dir": "x", "model_name_or_path": "gpt2"},
    {"learning_rate": 2e-4, "output_dir": "x", "adapter": "lora", "base_model": "gpt2"},
    {"learning_rate": 2e-2, "output_dir": "x", "model_name_or_path": "gpt2", "optim": "sgd"},
    Setup(model_type="llama", pretrained=True, groups=(GroupFacts(lr=0.0),)),
    Setup(model_type="llama", groups=(GroupFacts(lr=0.02),)),
    Setup(model_type="", groups=(GroupFacts(lr=0.02),)),
    Setup(model_type="llama", peft=True, peft_type="PROMPT_TUNING", groups=(GroupFacts(lr=0.3),)),
    """
from peft import PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, TrainingArguments
model = get_peft_model(AutoModelForCausalLM.from_pretrained("gpt2"), PromptTuningConfig(peft_type="x"))
args = TrainingArguments(output_dir="x", learning_rate=0.03, warmup_steps=10)
""",
]
