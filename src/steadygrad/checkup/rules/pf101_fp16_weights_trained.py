"""Weights in float16 are trained in float16.

What it sees
    A model cast with `.half()`, `.to(torch.float16)` or loaded with `dtype=torch.float16` whose parameters go into an
    optimizer; or live trainable parameters in float16.

Why it hurts
    The update is added to the weight in float16: below 1/2048 of the weight it is lost, and the moments of Adam
    underflow to zero, so that the first division makes NaN out of finite gradients. `GradScaler` refuses such
    gradients with an error.

Smallest example
    model = AutoModel.from_pretrained("x", dtype=torch.float16); torch.optim.AdamW(model.parameters())

What to do
    Keep the weights in float32 and compute in half: `torch.autocast` with a GradScaler, or bfloat16 autocast without
    one. Under PEFT only the adapters must be float32.

Safety
    Adapters in float32 over a frozen float16 base are healthy and are not reported.

References
    https://github.com/huggingface/transformers/issues/25021
    https://github.com/pytorch/pytorch/issues/147437
"""

from __future__ import annotations

from collections.abc import Iterator

from ...records.checkup import Advice, Level
from ...rules import Rule
from ..advice import about, at, listed
from ..facts import ParameterFacts, Setup
from ..models import loaded_as
from ..script import Script
from ..settings import uses_peft

RULE = Rule("PF101", "fp16_weights_trained", "Weights in float16 are trained in float16.")
HELP = "load and keep the weights in float32, and compute in half precision with torch.autocast"


def of_script(script: Script) -> Iterator[Advice]:
    """Silent where adapters are trained: then the float16 base is frozen."""
    if uses_peft(script):
        return
    for name, node in loaded_as(script, "float16"):
        yield at(RULE, Level.ERROR, script, node, f"{name} is float16 and its own weights are trained", help=HELP)


def of_setup(setup: Setup) -> Iterator[Advice]:
    """By the dtype of what shall learn."""
    half = [parameter for parameter in setup.trainable if parameter.dtype == "float16"]
    if half:
        share = sum(p.numel for p in half) / max(1, sum(p.numel for p in setup.trainable))
        yield about(
            RULE, Level.ERROR, listed([p.name for p in half]),
            f"{len(half)} trainable tensors are float16 ({share:.0%} of what is trained)",
            help=HELP, num_tensors=len(half), share=share,
        )  # fmt: skip


SPECIMENS = [
    """
import torch
model = Net().half()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""",
    """
import torch
from transformers import AutoModelForCausalLM, Trainer
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)
trainer = Trainer(model=model)
""",
    Setup(parameters=(ParameterFacts(name="w", dtype="float16"),)),
]
NEAR_MISSES = [
    """
import torch
teacher = Net().half()
student = Net()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
""",
    """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)
model = get_peft_model(model, LoraConfig())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""",
    Setup(
        parameters=(
            ParameterFacts(name="base", dtype="float16", trainable=False),
            ParameterFacts(name="lora_A", dtype="float32"),
        )
    ),
]
