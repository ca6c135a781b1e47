"""An update rests on very few samples.

What it sees
    A batch of at most four without gradient accumulation, for a transformer or recurrent network.

Why it hurts
    The gradient of so few samples is mostly noise: its norm swings by orders of magnitude, and one unusual sample
    decides a whole update.

Smallest example
    TrainingArguments(output_dir="out", per_device_train_batch_size=1)
    # fixed
    TrainingArguments(output_dir="out", per_device_train_batch_size=1, gradient_accumulation_steps=8)

What to do
    Accumulate: `gradient_accumulation_steps` of 2 to 16. It costs no memory.

Safety
    A note: several devices multiply the batch, which the text does not tell.

References
    https://arxiv.org/abs/1812.06162
"""

from __future__ import annotations

from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at, setting
from ...inputs.loop_calls import hands_over, loops
from ...inputs.run_settings import Settings
from ...inputs.script import Script, last_word
from ...inputs.script_models import trains_sequences

RULE = Rule("PF214", "few_samples_an_update", "An update rests on very few samples.")
FEW = 4
HELP = "accumulate the gradients of 2 to 16 batches"


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Only where the batch is written down."""
    batch, accumulated = settings.number("batch_size"), settings.number("accumulation")
    known = settings.complete and (accumulated is not None or not settings.has("accumulation"))
    if settings.kind not in ("transformers", "own") or batch is None or not known:
        return
    if (settings.kind == "transformers" or settings.sequences) and 0 < batch * (accumulated or 1) <= FEW:
        samples = f"{batch * (accumulated or 1):g} sample{'s' if batch * (accumulated or 1) > 1 else ''} a device"
        yield setting(RULE, Level.NOTE, settings, "batch_size", f"an update rests on {samples}", help=HELP)


def of_script(script: Script) -> Iterator[Advice]:
    """Any word with accum in it counts as accumulation."""
    if not loops(script) or hands_over(script) or not trains_sequences(script):
        return
    if any("accum" in word.lower() for word in script.words):
        return
    for call in (each for each in script.calls if last_word(each.func) == "DataLoader"):
        batch = script.literal(script.given(call, "batch_size"))
        if isinstance(batch, int) and not isinstance(batch, bool) and batch <= FEW and not script.untracked(call):
            what = f"an update rests on {batch} sample{'s' if batch > 1 else ''}"
            yield at(RULE, Level.NOTE, script, call, what, help=HELP)
            return


_LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Transformer()
loader = DataLoader(data, batch_size={size}, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    model(x, y).sum().backward()
    optimizer.step()
"""
SPECIMENS = [
    _LOOP.format(size=2),
    {"output_dir": "x", "per_device_train_batch_size": 1},
    {"training": {"train_batch_size": 4, "warmup_steps": 9, "dtype": "bf16"}, "optimizer": {"lr": 1e-4}},
]
NEAR_MISSES = [
    _LOOP.format(size=32),
    {"output_dir": "x", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16},
    {"lr": 0.1, "batch_size": 1, "epochs": 3},
]
