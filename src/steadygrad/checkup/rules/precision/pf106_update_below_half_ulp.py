"""Updates of weights in bfloat16 fall below half a unit in the last place.

What it sees
    Weights that are themselves bfloat16 (no float32 copy) with Adam and a learning rate that is smaller than half of
    their last bit: about 1/256 of the weight.

Why it hurts
    Adam's update is about as large as the learning rate. Added to a weight of 0.02 in bfloat16, 1e-5 changes nothing:
    most weights never move, and only the few near zero learn.

Smallest example
    w = torch.tensor(0.02, dtype=torch.bfloat16); w - 1e-5 == w  # True
    # fixed
    w = torch.tensor(0.02, dtype=torch.float32); w - 1e-5 == w  # False

What to do
    Keep the weights in float32 and compute in bfloat16 (autocast), or use an optimizer with stochastic rounding or a
    compensation term, or train adapters.

Safety
    Without looking at the weights a typical magnitude of 0.02 is assumed, with a margin of four, and it is a note; a
    warning where they were measured. DeepSpeed and FSDP
    with mixed precision keep a float32 copy and are not reported.

References
    https://github.com/pytorch/pytorch/issues/120376
    https://github.com/meta-pytorch/torchtune/issues/2254
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, listed, setting
from ...inputs.facts import GroupFacts, ParameterFacts, Setup
from ...inputs.loop_calls import hands_over
from ...inputs.run_settings import Settings, from_script, uses_peft
from ...inputs.script import Script
from ...inputs.script_models import learning_rates, loaded_as

RULE = Rule("PF106", "update_below_half_ulp", "Updates of bfloat16 weights fall below half a unit in the last place.")
HELP = "keep the weights in float32 and compute in bfloat16, or use an optimizer with stochastic rounding"
UNSEEN_LR = 1.5e-5
"""Half an ulp of 0.02 in bfloat16 is 6.1e-5; a quarter of that where no one measured the weights."""
ROUNDS_WELL = ("stochastic", "bf16", "kahan", "anyprecision", "adalomo", "lomo")


def half_ulp(magnitude: float) -> float:
    """Half the distance to the next bfloat16 above this magnitude."""
    return float(2.0 ** (math.floor(math.log2(magnitude)) - 8)) if magnitude > 0 else 0.0


def of_script(script: Script) -> Iterator[Advice]:
    """A bfloat16 model that is trained directly at a small rate."""
    if uses_peft(script) or hands_over(script) or "deepspeed" in script.words or "fsdp" in script.words:
        return
    loaded = list(loaded_as(script, "bfloat16"))
    rates = [rate for _, kind, rate in learning_rates(script) if "Adam" in kind]
    rates += [rate for each in from_script(script) if (rate := each.number("learning_rate")) and not each.on("bf16")]
    small = [rate for rate in rates if 0 < rate < UNSEEN_LR]
    if loaded and small:
        name, home, node = loaded[0]
        yield at(
            RULE, Level.NOTE, home, node,
            f"{name} is bfloat16 and trained at {small[0]:g}: weights above {small[0] * 256:.2g} do not move",
            help=HELP,
        )  # fmt: skip


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Programs with a switch for it call it pure bf16."""
    rate = settings.number("learning_rate")
    if settings.on("pure_bf16") and rate is not None and 0 < rate < UNSEEN_LR and not settings.lora:
        yield setting(
            RULE, Level.NOTE, settings, "pure_bf16",
            f"pure bfloat16 at a rate of {rate:g}: weights above {rate * 256:.2g} do not move", help=HELP,
        )  # fmt: skip


def of_setup(setup: Setup) -> Iterator[Advice]:
    """By the measured magnitude of the weights where there is one."""
    groups = [group for group in setup.groups if group.adam and "bfloat16" in group.dtypes and group.lr]
    groups = [group for group in groups if not any(word in group.kind.lower() for word in ROUNDS_WELL)]
    if not groups:
        return
    rate = max(group.lr or 0.0 for group in groups)
    weights = [p for p in setup.trainable if p.dtype == "bfloat16" and p.in_optimizer]
    lost = [p for p in weights if rate < (half_ulp(p.typical) if p.typical is not None else UNSEEN_LR)]
    share = sum(p.numel for p in lost) / max(1, sum(p.numel for p in weights))
    if share > 0.5:
        yield about(
            RULE, Level.WARNING, listed([p.name for p in lost]),
            f"at a rate of {rate:g} bfloat16 weights above {rate * 256:.2g} do not move ({share:.0%} of them)",
            help=HELP, lr=rate, share=share,
        )  # fmt: skip


SPECIMENS = [
    """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
""",
    {"pure_bf16": True, "learning_rate": 1e-5, "output_dir": "x"},
    Setup(
        parameters=(ParameterFacts(name="w", dtype="bfloat16", typical=0.02),),
        groups=(GroupFacts(lr=5e-5, dtypes=("bfloat16",)),),
    ),
    Setup(
        parameters=(ParameterFacts(name="w", dtype="bfloat16"),), groups=(GroupFacts(lr=1e-5, dtypes=("bfloat16",)),)
    ),
]
NEAR_MISSES = [
    """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
    {"pure_bf16": True, "learning_rate": 1e-5, "finetuning_type": "lora"},
    Setup(
        parameters=(ParameterFacts(name="w", dtype="bfloat16", typical=0.02),),
        groups=(GroupFacts(lr=1e-4, dtypes=("bfloat16",)),),
    ),
    Setup(
        parameters=(ParameterFacts(name="w", dtype="float32", typical=0.02),),
        groups=(GroupFacts(lr=1e-6, dtypes=("float32",)),),
    ),
]
