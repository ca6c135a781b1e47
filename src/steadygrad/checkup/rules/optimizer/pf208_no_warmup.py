"""Adam starts at a high learning rate without warm-up.

What it sees
    Adam with a rate of 1e-4 and above for a whole transformer, or 1e-3 and above for adapters, and warm-up nowhere; in
    a configuration with other key names, a warm-up of 0; in a script, a sequence model in a file without the word.

Why it hurts
    In the first steps Adam's second moment rests on a handful of batches, so every step has full length in a poor
    direction. Large models leave the good region there and never come back.

Smallest example
    TrainingArguments(output_dir="out", learning_rate=5e-4)
    # fixed
    TrainingArguments(output_dir="out", learning_rate=5e-4, warmup_ratio=0.03)

What to do
    `warmup_ratio=0.03` or some hundred to 2000 `warmup_steps`.

Safety
    A note: small models often get away with it.

References
    https://arxiv.org/abs/1908.03265
    https://arxiv.org/abs/2002.04745
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at, setting
from ...inputs.loop_calls import hands_over, loops
from ...inputs.run_settings import Settings, uses_peft
from ...inputs.script import Script
from ...inputs.script_models import learning_rates, trains_sequences

RULE = Rule("PF208", "no_warmup", "Adam starts at a high learning rate without warm-up.")
FROM = {"whole": 1e-4, "lora": 1e-3}


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Only where all settings are written down, so that no warm-up means none."""
    rate = settings.number("learning_rate")
    if settings.kind not in ("transformers", "own") or not settings.complete or not settings.adam or rate is None:
        return
    warm = [settings.values[path] for path in settings.keys("warmup")]
    if any(value not in (0, 0.0, None) for value in warm) or "warmup" in settings.word("lr_scheduler_type"):
        return
    if settings.kind == "own" and not (warm and settings.sequences):
        return  # a program's own default for what is not written is not known
    if not settings.other_adapter and rate >= FROM["lora" if settings.lora else "whole"]:
        yield setting(
            RULE, Level.NOTE, settings, "learning_rate",
            f"Adam starts at {rate:g} with no warm-up", help="warmup_ratio=0.03, or some hundred warmup_steps",
        )  # fmt: skip


def of_script(script: Script) -> Iterator[Advice]:
    """Notes: what a scheduler of another file does is not seen."""
    if hands_over(script) or uses_peft(script) or not trains_sequences(script) or not loops(script):
        return
    named = [call for call in script.calls if script.given(call, "num_warmup_steps", "warmup_steps") is not None]
    none = [call for call in named if script.literal(script.given(call, "num_warmup_steps", "warmup_steps")) == 0]
    warms = any("warm" in word.lower() or word == "OneCycleLR" for word in script.words)
    for call, kind, rate in learning_rates(script):
        if kind.startswith("Adam") and rate >= FROM["whole"] and (none or not warms):
            yield at(
                RULE, Level.NOTE, script, next(iter(none), call), f"Adam starts at {rate:g} with no warm-up",
                help="raise the rate from 0 over some hundred steps, as get_cosine_schedule_with_warmup does",
            )  # fmt: skip
            return


SPECIMENS = [
    """
import torch
model = torch.nn.Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for x, y in loader:
    optimizer.zero_grad()
    model(x, y).sum().backward()
    optimizer.step()
""",
    {"optimizer": {"lr": 1e-3, "eps": 1e-8}, "training": {"warmup_steps": 0, "dtype": "bf16"}},
    {"learning_rate": 5e-4, "output_dir": "x"},
    {"learning_rate": 5e-3, "output_dir": "x", "warmup_steps": 0},
    {"learning_rate": 2e-3, "output_dir": "x", "adapter": "lora"},
]
NEAR_MISSES = [
    """
import torch
model = torch.nn.Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=500)
for x, y in loader:
    optimizer.zero_grad()
    model(x, y).sum().backward()
    optimizer.step()
    warmup.step()
""",
    {"optimizer": {"lr": 1e-3, "eps": 1e-8}, "training": {"warmup_steps": 2000, "dtype": "bf16"}},
    {"optimizer": {"lr": 1e-3, "eps": 1e-8}, "training": {"batch_size": 8, "seq_len": 32}},
    {"learning_rate": 5e-4, "output_dir": "x", "warmup_ratio": 0.03},
    {"learning_rate": 2e-5, "output_dir": "x"},
    {"learning_rate": 2e-4, "output_dir": "x", "adapter": "lora"},
    {"learning_rate": 1e-3, "output_dir": "x", "optim": "adafactor"},
]
