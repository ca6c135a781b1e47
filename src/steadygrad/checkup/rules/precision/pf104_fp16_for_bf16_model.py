"""float16 is used for a model that was made in bfloat16.

What it sees
    fp16 together with a model of a family whose activations exceed 65504: T5 and its kin, Gemma, GLM. As a note, fp16
    for any model on a GPU that has bfloat16.

Why it hurts
    They were trained in bfloat16, whose range is that of float32. In float16 their feed-forward layers overflow on
    ordinary text: the loss is NaN at once, or after some steps.

Smallest example
    Seq2SeqTrainingArguments(output_dir="out", fp16=True)  # with model t5-large
    # fixed
    Seq2SeqTrainingArguments(output_dir="out", bf16=True)

What to do
    Use bf16. Where the hardware has none, train in float32, or keep the named layers in float32 (`steady probe` finds
    them).

Safety
    A note, judged by the family's name alone: a checkpoint may have been mended for float16. A warning for a live
    model, whose family is known. Of t5-small, and of quantized layers that compute in bfloat16, nothing is said.

References
    https://github.com/huggingface/transformers/issues/11461
    https://github.com/huggingface/transformers/pull/10956
    https://github.com/unslothai/unsloth/pull/5074
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, setting
from ...inputs.facts import ParameterFacts, Setup
from ...inputs.run_settings import Settings
from ...inputs.script import keyword
from ...inputs.script_models import BORN_IN_BF16, BORN_IN_BF16_TYPES, model_names

RULE = Rule("PF104", "fp16_for_bf16_model", "float16 is used for a model that was made in bfloat16.")
FITS = {"t5-small", "google-t5/t5-small"}
"""Small enough for float16, as public training runs show."""
HELP = "set bf16 instead of fp16; where the hardware has no bf16, train in float32"


def of_settings(settings: Settings) -> Iterator[Advice]:
    """The model's name stands in the settings or in the script around them."""
    if not settings.half:
        return
    names = {str(settings.get("model"))} if isinstance(settings.get("model"), str) else set()
    if settings.script is not None:
        names |= model_names(settings.script)
    known = sorted(name for name in names if BORN_IN_BF16.search(name) and name.lower() not in FITS)
    if known and len(known) == len(names) and not _computes_wide(settings):
        yield setting(
            RULE, Level.NOTE, settings, "fp16", f"{known[0]} was made in bfloat16 and overflows in float16",
            help=HELP,
        )  # fmt: skip


def _computes_wide(settings: Settings) -> bool:
    """Quantized layers that compute in bfloat16: `bnb_4bit_compute_dtype=torch.bfloat16`."""
    if settings.word("bnb_4bit_compute_dtype") == "bfloat16":
        return True
    script = settings.script
    given = [keyword(call, "bnb_4bit_compute_dtype") for call in script.calls] if script is not None else []
    return script is not None and any(str(script.literal(each)).endswith("bfloat16") for each in given)


def of_setup(setup: Setup) -> Iterator[Advice]:
    """By the model's own configuration."""
    half = setup.precision == "fp16" or (setup.settings is not None and setup.settings.half)
    if BORN_IN_BF16_TYPES.match(setup.model_type) and half:
        yield about(
            RULE, Level.WARNING, setup.model_type, f"{setup.model_type} was made in bfloat16 and overflows in float16",
            help=HELP,
        )  # fmt: skip
    elif half and setup.bf16_hardware:
        yield about(
            RULE, Level.NOTE, "precision", "fp16 is asked for on a device that has bfloat16, which needs no loss scale",
            help="set bf16 instead of fp16",
        )  # fmt: skip


SPECIMENS = [
    {"model_name_or_path": "google/flan-t5-xl", "fp16": True, "output_dir": "x"},
    {"base_model": "google/gemma-2-9b", "fp16": True},
    """
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainingArguments
model = AutoModelForSeq2SeqLM.from_pretrained("t5-large")
args = Seq2SeqTrainingArguments(output_dir="x", fp16=True)
""",
    Setup(model_type="t5", precision="fp16", parameters=(ParameterFacts(name="w"),)),
    Setup(model_type="bert", precision="fp16", bf16_hardware=True, parameters=(ParameterFacts(name="w"),)),
]
NEAR_MISSES = [
    {"model_name_or_path": "t5-small", "fp16": True, "output_dir": "x"},
    """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments
wide = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("google/gemma-7b", quantization_config=wide)
args = TrainingArguments(output_dir="x", fp16=True)
""",
    {"model_name_or_path": "THUDM/chatglm2-6b", "fp16": True, "output_dir": "x"},
    {"model_name_or_path": "google/flan-t5-xl", "bf16": True, "output_dir": "x"},
    {"model_name_or_path": "bert-base-uncased", "fp16": True, "output_dir": "x"},
    {"model_name_or_path": "EleutherAI/gpt-neo-125m", "fp16": True},
    Setup(model_type="t5", precision="bf16", parameters=(ParameterFacts(name="w"),)),
    Setup(model_type="bert", precision="fp16", bf16_hardware=False, parameters=(ParameterFacts(name="w"),)),
]
