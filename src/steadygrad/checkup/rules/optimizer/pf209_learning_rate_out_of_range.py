"""The learning rate is outside what works for this kind of training.

What it sees
    A rate of zero or below; above 1e-3 for a whole pretrained model with Adam; outside 1e-6 to 5e-3 for adapters; 0.01
    and above for any transformer or recurrent network with Adam. A model made from a configuration is not a
    pretrained one.

Why it hurts
    Too high and the loss diverges within a few hundred steps, often as NaN; too low and the run is wasted.

Smallest example
    TrainingArguments(output_dir="out", learning_rate=2e-2)  # meant 2e-5
    # fixed
    TrainingArguments(output_dir="out", learning_rate=2e-5)

What to do
    1e-5 to 5e-5 for a whole pretrained model, 1e-4 to 3e-4 for LoRA, and a warm-up.

Safety
    Wide limits on purpose: only slips of the decimal point are reported. A note for files, for prompts, adapters and
    small networks bear more, and a schedule may begin at 0; nothing for optimizers whose rates are their own (LOMO).

References
    https://arxiv.org/abs/2106.09685
    https://github.com/huggingface/peft/issues/1522
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, setting
from ...inputs.facts import GroupFacts, Setup
from ...inputs.loop_calls import loops
from ...inputs.run_settings import Settings, uses_peft
from ...inputs.script import Script, last_word
from ...inputs.script_models import learning_rates, made, trained_expressions, trains_sequences

RULE = Rule("PF209", "learning_rate_out_of_range", "The learning rate is outside what works for this training.")

OWN_RATES = re.compile(r"(^|[^a-z])(ada)?lomo([^a-z]|$)", re.IGNORECASE)
"""Optimizers that step by the gradient itself, where 0.03 is usual."""


def wrong(rate: float, *, lora: bool, pretrained: bool, sequences: bool = False) -> str:
    """Why a rate cannot be right; "" if it may be."""
    if rate <= 0:
        return f"a learning rate of {rate:g} learns nothing"
    if lora:
        low, high = 1e-6, 5e-3
    elif pretrained:
        low, high = 1e-9, 1e-3
    elif sequences:
        low, high = 0.0, 0.0099
    else:
        return ""
    what = "LoRA" if lora else "a whole pretrained model" if pretrained else "a sequence model under Adam"
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
    words = [value for value in settings.values.values() if isinstance(value, str)]
    if any("noam" in text.lower() for text in [*words, *settings.text]):
        return  # there the number is a factor before width ** -0.5 * step ** -0.5
    if any(OWN_RATES.search(text) for text in words):
        return
    sequences = settings.kind == "own" and settings.sequences
    if why := wrong(rate, lora=settings.lora, pretrained=settings.pretrained, sequences=sequences):
        yield setting(
            RULE,
            Level.NOTE,
            settings,
            "learning_rate",
            why,
            help="1e-5 to 5e-5 for whole models, 1e-4 to 3e-4 for LoRA",
        )


def of_script(script: Script) -> Iterator[Advice]:
    """Adam's family over a model that the file loads whole, or over a sequence model that it builds and trains."""
    if uses_peft(script) or not loops(script):
        return
    loaded = any(_is_loaded(script, node) for node in trained_expressions(script))
    for call, kind, rate in learning_rates(script):
        if not kind.startswith("Adam") or kind == "Adamax" or (rate == 0 and _is_set_later(script)):
            continue
        why = wrong(rate, lora=False, pretrained=loaded, sequences=trains_sequences(script))
        if why:
            yield at(RULE, Level.NOTE, script, call, why, help="check the exponent: 1e-5 to 1e-3 is usual")


def _is_set_later(script: Script) -> bool:
    """Whether the file writes the rate into the groups of an optimizer: `group["lr"] = rate`."""
    stores = [node for node in script.nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
    return any(script.literal(node.slice) == "lr" for node in stores)


def _is_loaded(script: Script, node: ast.expr) -> bool:
    return any(
        isinstance(each, ast.Call) and last_word(each.func) == "from_pretrained"
        for each in ast.walk(made(script, node)[1])
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
    {"optimizer": {"lr": 0.01, "eps": 1e-8}, "training": {"warmup_steps": 10, "dtype": "bf16"}},
    """
import torch
class Learner:
    def __init__(self, lr=0.02):
        self.lr = lr
        self.model = torch.nn.Transformer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)
    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            self.model(x, y).sum().backward()
            self.optimizer.step()
""",
    """
import torch
from transformers import AutoModel
def train(loader):
    model = AutoModel.from_pretrained("x")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for x in loader:
        optimizer.zero_grad()
        model(x).loss.backward()
        optimizer.step()
""",
    Setup(model_type="llama", pretrained=True, groups=(GroupFacts(lr=0.02),)),
]
WARNINGS = SPECIMENS[-1:]
ONLY_NOTES = SPECIMENS[:-1]
NEAR_MISSES = [
    {"learning_rate": 0.03, "output_dir": "x", "model_name_or_path": "llama/7B", "tag": "lomo"},
    {"model_name_or_path": "x", "train_mode": "full", "lora_rank": 64, "learning_rate": 5e-7, "output_dir": "x"},
    {"optim": "adam", "optim_conf": {"lr": 0.002}, "batch_size": 8, "postencoder": {"model_name_or_path": "bert-base"}},
    {"model": "transducer", "optim": "adam", "optim_conf": {"lr": 0.005}, "batch_size": 16, "grad_clip": 5},
    {
        "base_model": "x/mpt",
        "adapter": None,
        "lora_r": 8,
        "learning_rate": 2e-7,
        "num_epochs": 3,
        "optimizer": "adamw",
        "output_dir": "x",
    },
    """
import adapters
from adapters import AdapterTrainer
from transformers import AutoModel, TrainingArguments
model = AutoModel.from_pretrained("vit")
model.train_adapter("plus")
args = TrainingArguments(output_dir="x", learning_rate=10e-3, warmup_steps=10)
""",
    """
import torch
class Schedule:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    def step(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
model = torch.nn.Transformer()
optimizer = Schedule(torch.optim.Adam(model.parameters(), lr=0))
for x, y in loader:
    model(x, y).sum().backward()
    optimizer.step(1e-4)
""",
    """
import torch
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
""",
    """
import torch
from transformers import AutoModel
backbone = AutoModel.from_pretrained("x")
head = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3)
for x in loader:
    optimizer.zero_grad()
    head(backbone(x)).sum().backward()
    optimizer.step()
""",
    {"optim": "adam", "learning_rate": 2, "decay_method": "noam", "warmup_steps": 8000, "max_grad_norm": 1.0},
    {"learning_rate": 0.002, "output_dir": "x", "model": "<network>", "optim": "adamw_torch"},
    {"optimizer": {"name": "sgd", "lr": 0.1}, "training": {"warmup_steps": 10, "dtype": "bf16"}},
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
