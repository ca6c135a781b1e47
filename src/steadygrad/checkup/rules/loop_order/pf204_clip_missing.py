"""A recurrent network or transformer is trained without clipping its gradients.

What it sees
    A hand-written loop over a sequence model in a file that clips nothing; a clip at so high a norm (10,000 and above)
    that it never acts; or a setting that does either.

Why it hurts
    Sequence models meet single batches whose gradient is a hundred times the usual one. One such step can undo days.

Smallest example
    loss.backward(); optimizer.step()  # around an nn.LSTM
    # fixed
    loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()

What to do
    `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` between backward and step. It does not cure NaN: a norm
    that is not finite must be refused, not clipped.

Safety
    A note: many models never need it, and adversarial training is usually not clipped. Clipping that never triggers
    changes nothing. A clip at infinity is the usual way to measure the norm and is not reported by itself.

References
    https://arxiv.org/abs/1211.5063
    https://www.deepspeed.ai/docs/config-json/
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at, setting
from ...inputs.loop_calls import CLIPS, hands_over, loops
from ...inputs.run_settings import Settings
from ...inputs.script import Script, keyword, last_word
from ...inputs.script_models import trains_sequences

RULE = Rule("PF204", "clip_missing", "A recurrent network or transformer is trained without clipping its gradients.")

HIGHEST = 1e4
"""Gradient norms of healthy runs stay far below; a limit from here on never acts."""


def of_script(script: Script) -> Iterator[Advice]:
    """Any word with clip in it counts as clipping, unless all it names are clips that never act."""
    limits = [(call, _limit(script, call)) for call in script.calls if last_word(call.func) in CLIPS]
    for call, limit in limits:
        if isinstance(limit, float) and HIGHEST <= limit < math.inf:
            yield at(
                RULE, Level.NOTE, script, call,
                f"a limit of {limit:g} clips nothing", help="clip at 1.0, or at infinity where only the norm is wanted",
            )  # fmt: skip
            return
    measures = bool(limits) and all(limit == math.inf for _, limit in limits)
    found = loops(script)
    clips = any("clip" in word.lower() for word in script.words) and not measures
    if not found or hands_over(script) or not trains_sequences(script) or clips:
        return
    step = next(event for event in found[0] if event.kind in ("step", "scaler_step"))
    yield at(
        RULE, Level.NOTE, script, step.node, "a sequence model is trained and nothing clips its gradients",
        help="clip_grad_norm_(model.parameters(), 1.0) before the step",
    )  # fmt: skip


def _limit(script: Script, call: ast.Call) -> float | None:
    """The limit that a clip is given; None if the text does not tell."""
    given = call.args[1] if len(call.args) > 1 else keyword(call, "max_norm")
    if given is not None and ast.unparse(given) in (
        "float('inf')",
        "math.inf",
        "torch.inf",
        "np.inf",
    ):
        return math.inf
    value = script.literal(given)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def of_settings(settings: Settings) -> Iterator[Advice]:
    """transformers clips at 1.0 unless told not to; DeepSpeed does not clip unless told to."""
    limit = settings.number("max_grad_norm")
    if limit is not None and HIGHEST <= limit < math.inf:
        detail = f"a limit of {limit:g} clips nothing"
        yield setting(RULE, Level.NOTE, settings, "max_grad_norm", detail, help="set it to 1.0")
    elif settings.off("max_grad_norm") and settings.kind in ("transformers", "deepspeed", "own"):
        detail = "gradient clipping is switched off"
        yield setting(RULE, Level.NOTE, settings, "max_grad_norm", detail, help="set it to 1.0")
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
    {"max_grad_norm": 1e6, "output_dir": "x"},
    {"optimizer": {"lr": 1e-4, "grad_clip_norm": 0}, "training": {"warmup_steps": 10}},
    {"lr": 1e-4, "grad_clip": None, "batch_size": 4},
    """
import torch
for x in loader:
    model(x).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    optimizer.step()
""",
    """
import torch
model = torch.nn.LSTM(8, 8)
for x in loader:
    optimizer.zero_grad()
    model(x)[0].sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    optimizer.step()
""",
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
]
ONLY_NOTES = [
    *SPECIMENS,
    {"zero_optimization": {"stage": 0}, "train_batch_size": 256, "fp16": {"enabled": True}, "gradient_clipping": 0},
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
    {"optimizer": {"lr": 1e-4, "grad_clip_norm": 0.5}, "training": {"warmup_steps": 10}},
    """
import torch
for x in loader:
    model(x).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    optimizer.step()
""",
    {"output_dir": "x", "learning_rate": 1e-5},
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": "auto"},
]
