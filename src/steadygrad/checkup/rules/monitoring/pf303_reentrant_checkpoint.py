"""Re-entrant checkpointing over inputs that need no gradient.

What it sees
    `use_reentrant=True` together with adapters or frozen layers, and nothing that makes the inputs require a gradient.

Why it hurts
    A re-entrant checkpoint runs its block without a graph. Where no input requires a gradient, nothing inside it gets
    one: the adapters in all checkpointed layers stay as they were, with only a warning from torch.

Smallest example
    TrainingArguments("out", gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True})  # LoRA
    # fixed
    TrainingArguments("out", gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})

What to do
    `use_reentrant=False`, or `model.enable_input_require_grads()`.

Safety
    Exact: the non-re-entrant form computes the same numbers. A note for files, for libraries often make the inputs
    require a gradient by themselves; an error for a live model, where it is seen.

References
    https://github.com/huggingface/transformers/issues/21381
    https://github.com/huggingface/trl/issues/3089
    https://github.com/locuslab/open-unlearning/issues/178
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, setting
from ...inputs.facts import ParameterFacts, Setup
from ...inputs.run_settings import Settings
from ...inputs.script import Script, keyword

RULE = Rule("PF303", "reentrant_checkpoint", "Re-entrant checkpointing over inputs that need no gradient.")
HELP = "use_reentrant=False, or model.enable_input_require_grads()"
MENDED = {"enable_input_require_grads", "prepare_model_for_kbit_training", "prepare_model_for_int8_training"}


def of_script(script: Script) -> Iterator[Advice]:
    """Only where re-entry is asked for in so many words and something is frozen."""
    freezes = "requires_grad_(False)" in script.text or "requires_grad = False" in script.text
    if not freezes or script.words & MENDED:
        return
    for call in script.calls:
        checkpoints = script.dotted(call.func) in ("torch.utils.checkpoint.checkpoint", "checkpoint.checkpoint")
        if checkpoints and script.literal(keyword(call, "use_reentrant")) is True:
            yield at(RULE, Level.NOTE, script, call, "a frozen input may leave this block without gradients", help=HELP)


def of_settings(settings: Settings) -> Iterator[Advice]:
    """In the nested form too: `gradient_checkpointing_kwargs: {use_reentrant: true}`."""
    kwargs = settings.get("gradient_checkpointing_kwargs")
    reentrant = settings.on("use_reentrant") or (isinstance(kwargs, dict) and kwargs.get("use_reentrant") is True)
    mended = settings.script is not None and bool(settings.script.words & MENDED)
    if settings.on("gradient_checkpointing") and reentrant and settings.lora and not mended:
        yield setting(
            RULE, Level.NOTE, settings, "gradient_checkpointing",
            "re-entrant checkpointing under adapters: checkpointed layers may get no gradient", help=HELP,
        )  # fmt: skip


def of_setup(setup: Setup) -> Iterator[Advice]:
    """By the model itself: checkpointing is on, re-entrant, over a frozen embedding."""
    frozen = setup.embedding_trainable is False and not setup.inputs_require_grad
    if setup.checkpointing and setup.reentrant and frozen and setup.trainable:
        yield about(
            RULE, Level.ERROR, setup.model_class,
            "re-entrant checkpointing over a frozen embedding: layers inside get no gradient", help=HELP,
        )  # fmt: skip


SPECIMENS = [
    {"output_dir": "x", "adapter": "lora", "gradient_checkpointing": True,
     "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    """
import torch
from torch.utils.checkpoint import checkpoint
encoder.requires_grad_(False)
def forward(x):
    return checkpoint(block, x, use_reentrant=True)
""",
    Setup(
        parameters=(ParameterFacts(name="lora"),), checkpointing=True, reentrant=True, embedding_trainable=False,
        inputs_require_grad=False,
    ),
]  # fmt: skip
ONLY_NOTES = SPECIMENS[:2]
NEAR_MISSES = [
    {"output_dir": "x", "adapter": None, "lora_r": 8, "gradient_checkpointing": True,
     "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"output_dir": "x", "adapter": "lora", "gradient_checkpointing": True,
     "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    {"output_dir": "x", "gradient_checkpointing": True,
     "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    """
import torch
from torch.utils.checkpoint import checkpoint
encoder.requires_grad_(False)
def forward(x):
    return checkpoint(block, x, use_reentrant=False)
""",
    Setup(
        parameters=(ParameterFacts(name="lora"),), checkpointing=True, reentrant=True, embedding_trainable=False,
        inputs_require_grad=True,
    ),
]  # fmt: skip
