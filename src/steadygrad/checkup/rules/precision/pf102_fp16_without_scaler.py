"""float16 autocast without a loss scale.

What it sees
    A loop that runs forward under float16 autocast, calls backward and steps, in a file that never mentions a scaler;
    or live settings with float16 and no GradScaler; or a configuration with other key names, float16 and a loss scale
    of 1, or none.

Why it hurts
    Gradients under 6e-8 become zero in float16, often most of them. Nothing is NaN; the model just learns less, or
    nothing.

Smallest example
    with torch.autocast("cuda", dtype=torch.float16): loss = model(x)
    loss.backward(); optimizer.step()
    # fixed
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()

What to do
    `scaler = torch.amp.GradScaler()`, then `scaler.scale(loss).backward()`, `scaler.step(optimizer)`,
    `scaler.update()`. Or use bfloat16, which needs none.

Safety
    Files that hand the step to Accelerate, Fabric or DeepSpeed are not reported: those scale by themselves. A note for
    a configuration, whose program may scale in another way, where the loop only counts, and for a file that measures.

References
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    https://github.com/huggingface/transformers/issues/25021
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, setting
from ...inputs.facts import ParameterFacts, Setup
from ...inputs.loop_calls import autocast_dtype, hands_over, has_scaler, learns_from_data, loops
from ...inputs.run_settings import Settings
from ...inputs.script import Script

RULE = Rule("PF102", "fp16_without_scaler", "float16 autocast without a loss scale.")
HELP = "scale the loss with torch.amp.GradScaler, or use bfloat16"


def of_script(script: Script) -> Iterator[Advice]:
    """One finding a file, at the first autocast that is trained through."""
    if not loops(script) or has_scaler(script) or hands_over(script) or _is_given_away(script):
        return
    for call in script.calls:
        if autocast_dtype(script, call) == "float16" and not script.untracked(call) and _is_entered(script, call):
            steps = [event.node for found in loops(script) for event in found if event.kind == "step"]
            shown = any(learns_from_data(script, step) for step in steps)
            level = Level.WARNING if shown else Level.NOTE
            yield at(RULE, level, script, call, "forward runs in float16 and nothing scales the loss", help=HELP)
            return


def _is_given_away(script: Script) -> bool:
    """Whether every backward is that of an object that is given the loss and may scale it: `engine.backward(loss)`."""
    calls = [call for call in script.calls if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"]
    own = [call for call in calls if not call.args or ast.unparse(call.func) == "torch.autograd.backward"]
    return bool(calls) and not own


def _is_entered(script: Script, call: ast.Call) -> bool:
    return isinstance(script.parents.get(call), ast.withitem | ast.FunctionDef)


def of_settings(settings: Settings) -> Iterator[Advice]:
    """Programs whose settings have other names; the others scale the loss by themselves."""
    if settings.kind != "own" or not settings.half:
        return
    key = "fp16" if settings.on("fp16") else "precision"
    places = [path for path in settings.keys("loss_scale") if "model" not in path]
    scale = settings.number("loss_scale") if places else None  # a model's own is the weight of its loss
    if scale is not None and 0 < scale <= 1.0:  # DeepSpeed and its kin write 0 for a dynamic scale
        detail = f"float16 with a loss scale of {scale:g}: small gradients become zero"
        yield setting(RULE, Level.NOTE, settings, key, detail, help=HELP)
    elif not settings.has("loss_scale"):
        detail = "float16 is asked for and no loss scale is named here"
        yield setting(
            RULE, Level.NOTE, settings, key, detail, help="use bfloat16, or see that the program scales the loss"
        )


def of_setup(setup: Setup) -> Iterator[Advice]:
    """Where the precision was told."""
    if setup.precision == "fp16" and not setup.has_scaler and not setup.guarded and setup.trainable:
        yield about(RULE, Level.WARNING, "precision", "fp16 is asked for and no loss scaler was given", help=HELP)


SPECIMENS = [
    """
import torch
def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
""",
    Setup(precision="fp16", parameters=(ParameterFacts(name="w"),)),
    {"optimizer": {"lr": 1e-4, "weight_decay": 0.1}, "training": {"dtype": "fp16"}, "loss": {"loss_scale": 1.0}},
    {"lr": 1e-4, "warmup_steps": 100, "dtype": "float16"},
]
WARNINGS = [SPECIMENS[0], SPECIMENS[1]]
ONLY_NOTES = [str(SPECIMENS[0]) + "from torch.profiler import profile\n", *SPECIMENS[2:]]
NEAR_MISSES = [
    {"lr": 1e-4, "warmup_steps": 100, "fp16": True, "loss_scale": 0},
    {"common": {"fp16": False}, "optimizer": {"lr": 1e-4, "betas": [0.9, 0.98]}, "model": {"loss_scale": 1}},
    """
import torch
class Trainer:
    def train(self, loader):
        for x, y in loader:
            self.optim.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(x, y)
            self.optim.backward(loss)
            self.optim.step()
""",
    """
import torch
def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
""",
    """
import torch
scaler = torch.amp.GradScaler()
def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    Setup(precision="fp16", has_scaler=True, parameters=(ParameterFacts(name="w"),)),
    {"optimizer": {"lr": 1e-4, "weight_decay": 0.1}, "training": {"dtype": "bf16"}, "loss": {"loss_scale": 1.0}},
    {"lr": 1e-4, "warmup_steps": 100, "dtype": "float16", "loss_scale": 65536},
    {"output_dir": "x", "fp16": True},
]
