"""A training loop in which nothing looks at the loss or at the gradient norm.

What it sees
    A hand-written loop with neither a test for NaN or infinity before the step nor any use of the gradient norm. It
    also says whether the file saves checkpoints and can go back to one. Under transformers, logging that is switched
    off or happens every 1000 steps and less often.

Why it hurts
    The first NaN is applied to the weights, and every step after it is wasted. Without a checkpoint from before it
    there is no checkpoint to restore.

Smallest example
    for x, y in loader: optimizer.zero_grad(); loss_fn(model(x), y).backward(); optimizer.step()
    # fixed
    guard = sg.attach(optimizer, model=model)  # before the loop

What to do
    `sg.attach(optimizer)` or `sg.Guard`: both check every update, record the norm, and restore. By hand: keep
    `norm = clip_grad_norm_(...)`, and leave the step out on all ranks unless it is finite.

Safety
    A note. A GradScaler checks the gradients itself, and files that hand the step to a framework are not reported.

References
    https://github.com/huggingface/trl/issues/6702
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at, setting
from ...inputs.loop_calls import CLIPS, hands_over, has_scaler, loops
from ...inputs.loss_expressions import asks_if_finite
from ...inputs.run_settings import Settings
from ...inputs.script import Script, last_word

RULE = Rule("PF309", "unwatched_loop", "A training loop in which nothing looks at the loss or at the gradient norm.")
SAVES = {"save", "save_pretrained", "save_checkpoint", "save_model", "save_file", "save_state", "async_save"}
LOADS = {"load_state_dict", "load_checkpoint", "load_model", "from_pretrained", "load_state", "resume"}
NORMS = ("grad_norm", "gradnorm", "total_norm", "get_total_norm", "gradient_norm", "norm_grad")
RARELY = 1000


def of_script(script: Script) -> Iterator[Advice]:
    """One note a file, at the step of its first loop, which names everything that is missing."""
    found = loops(script)
    if not found or hands_over(script) or has_scaler(script) or script.imports("steadygrad"):
        return
    checked = any(isinstance(node, ast.expr) and _asks(node) for node in script.nodes)
    if checked or _norm_is_used(script):
        return
    missing = ["checks the loss before backward or reads the gradient norm before the step"]
    if not script.called & SAVES:
        missing.append("saves a checkpoint")
    if not script.called & LOADS and not any("resume" in word.lower() for word in script.words):
        missing.append("can go back to one" if len(missing) == 2 else "can go back to a checkpoint")
    step = next(event for event in found[0] if event.kind in ("step", "scaler_step"))
    detail = f"nothing here {', or '.join(missing)}"
    yield at(RULE, Level.NOTE, script, step.node, detail, help="sg.attach(optimizer) checks every update and restores")


def _asks(node: ast.expr) -> bool:
    return isinstance(node, ast.Call | ast.Compare) and asks_if_finite(node)


def _norm_is_used(script: Script) -> bool:
    """Kept from the clip, or measured by name."""
    clips = [call for call in script.calls if last_word(call.func) in CLIPS]
    kept = any(not isinstance(script.parents.get(call), ast.Expr) for call in clips)
    words = {word.lower() for word in script.words - CLIPS if not word.lower().startswith(("max", "clip"))}
    return kept or any(part in word for word in words for part in NORMS)


def of_settings(settings: Settings) -> Iterator[Advice]:
    """The gradient norm that a Trainer, or a program with such a setting, reports with its log."""
    every = settings.number("log_interval")
    rarely = every is not None and every >= RARELY
    if settings.kind in ("transformers", "own") and (rarely or settings.word("logging_strategy") == "no"):
        key, when = ("log_interval", f"every {every:g} steps only") if rarely else ("logging_strategy", "never")
        detail = f"loss and gradient norm are logged {when}"
        yield setting(RULE, Level.NOTE, settings, key, detail, help="log every 10 to 100 steps")


_LOOP = """
import torch
def train(model, optimizer, loader):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        {clip}torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        {step}
"""
SPECIMENS = [
    _LOOP.format(clip="", step="optimizer.step()").replace("1.0", "max_grad_norm"),
    _LOOP.format(clip="", step="optimizer.step()"),
    {"num_train_epochs": 3, "logging_strategy": "no"},
    {"lr": 1e-4, "batch_size": 8, "log_every": 5000},
]
NEAR_MISSES = [
    _LOOP.format(clip="norm = ", step="optimizer.step()"),
    _LOOP.format(clip="", step="if torch.isfinite(loss): optimizer.step()"),
    "import steadygrad as sg\n" + _LOOP.format(clip="", step="optimizer.step()"),
    {"output_dir": "x", "logging_steps": 10},
]
