"""A recurrent network or transformer is trained without clipping its gradients.

What it sees
    A hand-written loop over a sequence model in a file that clips nothing; or a setting that switches clipping off.

Why it hurts
    Sequence models meet single batches whose gradient is a hundred times the usual one. One such step can undo days.

Smallest example
    loss.backward(); optimizer.step()  # around an nn.LSTM

What to do
    `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` between backward and step. It does not cure NaN: a norm
    that is not finite must be refused, not clipped.

Safety
    A note in scripts, for many small models never need it. Clipping that never triggers changes nothing.

References
    https://arxiv.org/abs/1211.5063
    https://www.deepspeed.ai/docs/config-json/
"""

from __future__ import annotations

from collections.abc import Iterator

from ...records.checkup import Advice, Level
from ...rules import Rule
from ..advice import at, setting
from ..loop import hands_over, loops
from ..models import trains_sequences
from ..script import Script
from ..settings import Settings

RULE = Rule("PF204", "clip_missing", "A recurrent network or transformer is trained without clipping its gradients.")


def of_script(script: Script) -> Iterator[Advice]:
    """Any word with clip in it counts as clipping."""
    found = loops(script)
    if (
        not found
        or hands_over(script)
        or not trains_sequences(script)
        or any("clip" in w.lower() for w in script.words)
    ):
        return
    step = next(event for event in found[0] if event.kind in ("step", "scaler_step"))
    yield at(
        RULE, Level.NOTE, script, step.node, "a sequence model is trained and nothing clips its gradients",
        help="clip_grad_norm_(model.parameters(), 1.0) before the step",
    )  # fmt: skip


def of_settings(settings: Settings) -> Iterator[Advice]:
    """transformers clips at 1.0 unless told not to; DeepSpeed does not clip unless told to."""
    limit = settings.number("max_grad_norm")
    if limit is not None and limit <= 0 and settings.kind in ("transformers", "deepspeed"):
        yield setting(
            RULE, Level.WARNING, settings, "max_grad_norm", "gradient clipping is switched off", help="set it to 1.0"
        )
    elif settings.kind == "deepspeed" and not settings.has("max_grad_norm"):
        yield setting(
            RULE, Level.NOTE, settings, "gradient_clipping", "DeepSpeed clips nothing unless gradient_clipping is set",
            help='"gradient_clipping": 1.0, or "auto" under the Trainer',
        )  # fmt: skip


SPECIMENS = [
    """
import torch
model = torch.nn.LSTM(8, 8)
for x in loader:
    optimizer.zero_grad()
    model(x)[0].sum().backward()
    optimizer.step()
""",
    {"max_grad_norm": 0.0, "output_dir": "x"},
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
]
NEAR_MISSES = [
    """
import torch
model = torch.nn.Conv2d(8, 8, 3)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
""",
    {"max_grad_norm": 1.0, "output_dir": "x"},
    {"output_dir": "x", "learning_rate": 1e-5},
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": "auto"},
]
