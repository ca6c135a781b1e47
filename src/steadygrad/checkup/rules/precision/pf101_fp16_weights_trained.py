"""Weights in float16 are trained in float16.

What it sees
    A model cast with `.half()`, `.to(torch.float16)` or loaded with `dtype=torch.float16`, also by a function or class
    of the script and under a condition on CUDA, whose parameters go into an optimizer; adapters that are kept in the
    dtype of such a model; or live trainable parameters in float16.

Why it hurts
    The update is added to the weight in float16: below 1/2048 of the weight it is lost, and the moments of Adam
    underflow to zero, so that the first division makes NaN out of finite gradients. `GradScaler` refuses such
    gradients with an error.

Smallest example
    model = AutoModel.from_pretrained("x", dtype=torch.float16); torch.optim.AdamW(model.parameters())
    # fixed
    model = AutoModel.from_pretrained("x", dtype=torch.float32)  # and autocast around the forward

What to do
    Keep the weights in float32 and compute in half: `torch.autocast` with a GradScaler, or bfloat16 autocast without
    one. Under PEFT only the adapters must be float32.

Safety
    Adapters in float32 over a frozen float16 base are healthy and are not reported, except as a note where the
    training runs in fp16 as well: the base then has nothing wider to fall back on. A note too in a file that freezes
    parameters, or that DeepSpeed, FSDP or the command line may give a float32 copy of the weights.

References
    https://github.com/huggingface/transformers/issues/25021
    https://github.com/pytorch/pytorch/issues/147437
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, listed
from ...inputs.facts import ParameterFacts, Setup
from ...inputs.loop_calls import owner_of
from ...inputs.run_settings import from_script, uses_peft
from ...inputs.script import Script, last_word
from ...inputs.script_models import loaded_as, may_keep_wide

RULE = Rule("PF101", "fp16_weights_trained", "Weights in float16 are trained in float16.")
HELP = "load and keep the weights in float32, and compute in half precision with torch.autocast"

OF_ADAPTERS = "leave autocast_adapter_dtype on, so that PEFT keeps the adapters in float32"


def of_script(script: Script) -> Iterator[Advice]:
    """Where adapters are trained the float16 base is frozen, and PEFT keeps the adapters in float32 unless told not to
    or cast afterwards."""
    adapters = _adapters(script)
    if any("fp16_optim" in word.lower() or "master_p" in word.lower() for word in script.words):
        return  # such an optimizer keeps the weights in float32 and copies them
    for name, home, node in loaded_as(script, "float16"):
        if _a_part_stays_wide(script, name):
            continue
        level = Level.NOTE if may_keep_wide(script) else Level.ERROR
        if not adapters and not uses_peft(script):
            detail = f"{name} is float16 and its own weights are trained"
            yield at(RULE, level, home, node, detail, help=HELP)
        elif any(_stay_half(script, call, node) for call in adapters):
            detail = f"the adapters of {name} are float16 and are trained so"
            yield at(RULE, level, home, node, detail, help=OF_ADAPTERS)
        elif any(settings.half for settings in from_script(script)):
            detail = f"the frozen base of {name} is float16 and the training runs in fp16 too"
            yield at(RULE, Level.NOTE, home, node, detail, help="load the base in bfloat16 or float32, and set bf16")


def _a_part_stays_wide(script: Script, name: str) -> bool:
    """`model.prefix.float()`: what is trained is turned back, and the rest of the model is usually frozen."""
    floats = [call for call in script.calls if last_word(call.func) == "float" and isinstance(call.func, ast.Attribute)]
    return any(owner_of(call).startswith(f"{name}.") for call in floats)


def _adapters(script: Script) -> list[ast.Call]:
    return [call for call in script.calls if last_word(call.func) in ("get_peft_model", "add_adapter")]


def _stay_half(script: Script, call: ast.Call, cast: ast.AST) -> bool:
    """Told to keep the base's dtype, or cast with the model after they were added."""
    kept = script.literal(script.given(call, "autocast_adapter_dtype")) is False
    after = isinstance(cast, ast.stmt) and cast.lineno > call.lineno
    outermost = getattr(cast, "value", cast)
    wraps = call in ast.walk(cast) and last_word(getattr(outermost, "func", outermost)) in ("half", "to")
    return kept or after or wraps


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


_PEFT = "from peft import get_peft_model\n"
_LOADED = """
import torch
from transformers import AutoModel, Trainer, TrainingArguments
device = "cuda" if torch.cuda.is_available() else "cpu"
def load(dtype=torch.float16 if device == "cuda" else torch.float32):
    return AutoModel.from_pretrained("x", torch_dtype=dtype)
class Base:
    def __init__(self, wide=False):
        if wide:
            options = {{"torch_dtype": torch.float32}}
        else:
            options = {{"torch_dtype": torch.float16 if device == "cuda" else torch.float32}}
        self.net = AutoModel.from_pretrained("x", **options).to(device)
model = {model}
{wrap}
trainer = Trainer(model=model)
"""
SPECIMENS = [
    """
import torch
from transformers import AutoModelForCausalLM, Trainer
model = AutoModelForCausalLM.from_pretrained("x")
trainer = Trainer(model=model)
model.half()
trainer.train()
""",
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
    _LOADED.format(model="load()", wrap=""),
    _LOADED.format(model="Base().net", wrap=""),
    _LOADED.format(model="load()", wrap=_PEFT + "model = get_peft_model(model, cfg, autocast_adapter_dtype=False)"),
    _LOADED.format(model="load()", wrap=_PEFT + "model = get_peft_model(model, cfg).half()"),
    _LOADED.format(model="load()", wrap=_PEFT + "model = get_peft_model(model, cfg)")
    + """
args = TrainingArguments(output_dir="x", fp16=torch.cuda.is_available())
""",
]
_TRAINED = "\ntrainer.train()\n"
WARNINGS = [SPECIMENS[0], *(str(each) + _TRAINED for each in SPECIMENS[1:3]), SPECIMENS[3]]
WARNINGS += [str(each) + _TRAINED for each in SPECIMENS[4:-1]]
ONLY_NOTES = [
    SPECIMENS[-1],
    SPECIMENS[1],
    str(SPECIMENS[2]) + _TRAINED + "convert_models_to_fp32(model)\n",
    str(SPECIMENS[1]) + _TRAINED + "model = model.quantize(4)\n",
    str(SPECIMENS[2]).replace("trainer =", "args = HfArgumentParser(TrainingArguments).parse_args()\ntrainer ="),
    str(SPECIMENS[1]) + "model.encoder.requires_grad_(False)\n",
]
_AFTERWARDS = """
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Trainer
def run_inference(model):
    return model.generate(max_new_tokens=8)
model = get_peft_model(AutoModelForCausalLM.from_pretrained("x"), LoraConfig())
trainer = Trainer(model=model)
trainer.train()
model = AutoModelForCausalLM.from_pretrained("saved", torch_dtype=torch.float16)
"""
NEAR_MISSES = [
    _AFTERWARDS + "model.to(device)\nrun_inference(model)\n",
    _AFTERWARDS + "model = PeftModel.from_pretrained(model, 'saved').merge_and_unload()\n",
    """
import torch
from transformers import AutoModel, Trainer
model = AutoModel.from_pretrained("glm")
model = model.half()
model.transformer.prefix_encoder.float()
Trainer(model=model).train()
""",
    """
import torch
from fp16_opt import FP16_Optimizer
model = torch.nn.Linear(8, 8)
model = model.half()
optimizer = FP16_Optimizer(torch.optim.Adam(model.parameters()), dynamic_loss_scale=True)
""",
    _LOADED.format(model="load(torch.float32)", wrap=""),
    _LOADED.format(model="Base(wide=True).net", wrap=""),
    _LOADED.format(model="load()", wrap=_PEFT + "model = get_peft_model(model, cfg)"),
    _LOADED.format(model="load()", wrap=_PEFT + "model = get_peft_model(model, cfg)")
    + """
args = TrainingArguments(output_dir="x", bf16=True)
""",
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
