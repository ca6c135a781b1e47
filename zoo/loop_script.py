"""A case as an ordinary training script: the loop that its owner would have written, around the case's own pieces.

Only what the case's loop does stands in its script. The model, the loss and the batches are imported from the case's
file, so that a line named in a diagnosis is a line of that file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from . import protocol
from .trainers import needs_trainer
from .truth import Subject

BATCH_LINE = "batch {} at {}"
"""What the script prints when it begins with a batch: its index and the time."""
UPDATE_LINE = "update after batch {}"
"""What it prints at each call of the optimizer's step."""
_HOME = Path(__file__).parent


def script_of(subject: Subject) -> str:
    """The text of the script."""
    case = subject.case
    head = [
        "import sys",
        "import time",
        "",
        "import torch",
        "",
        f"sys.path.insert(0, {str(_HOME)!r})",
        "import protocol",
        "",
        "torch.set_num_threads(1)",
        "torch.manual_seed(0)",
        f"case = protocol.load({str(subject.path.resolve())!r}).make()",
    ]
    if needs_trainer(case):
        return "\n".join([*head, "case.trainer().train()", ""])
    return "\n".join([*head, *_loop(case, graph_may_be_missing=_graph_may_be_missing(subject.path)), ""])


def _loop(case: Any, *, graph_may_be_missing: bool) -> list[str]:
    lines = ["model, optimizer, scaler, scheduler = case.model, case.optimizer, case.scaler, case.scheduler"]
    lines += ["model.train()", "for index, batch in enumerate(case.batches):"]
    body = [f'print(f"{BATCH_LINE.format("{index}", "{time.time()}")}", flush=True)']
    body += ["case.before_step(case, index)"] if case.before_step else []
    if case.autocast:
        body += ['with torch.autocast("cpu", dtype=case.autocast):', "    loss = case.loss_fn(model, batch)"]
    else:
        body += ["loss = case.loss_fn(model, batch)"]
    body += ["print(index, float(loss.detach()), flush=True)"]
    if case.skip_nonfinite == "loss":
        body += ["if not torch.isfinite(loss):", *_indented(_skip(case)), "    continue"]
    backward = [f"{_scaled(case)}.backward()"]
    if case.after_backward:
        backward += ["case.after_backward(case, index)"]
    body += ["if loss.requires_grad:", *_indented(backward)] if graph_may_be_missing else backward
    if case.optimizer is not None:
        update = _update(case)
        window = case.accumulation > 1
        body += ["if (index + 1) % case.accumulation == 0:", *_indented(update)] if window else update
    return lines + _indented(body)


def _scaled(case: Any) -> str:
    loss = "loss" if case.accumulation == 1 else "(loss / case.accumulation)"
    if case.static_scale:
        loss = f"({loss} * case.static_scale)"
    return f"scaler.scale({loss})" if case.scaler is not None else loss


def _skip(case: Any) -> list[str]:
    return ["optimizer.zero_grad()"] if case.zero_grad_on_skip else ["pass"]


def _update(case: Any) -> list[str]:
    """From the gradients to the next batch, as the case's owner does it."""
    gradients = "[p.grad for p in model.parameters() if p.grad is not None]"
    lines = []
    if case.static_scale:
        lines += [f"for gradient in {gradients}:", "    gradient.div_(case.static_scale)"]
    if case.scaler is not None and not case.clip_before_unscale:
        lines += ["scaler.unscale_(optimizer)"]
    step = []
    if case.zero_nan_grads:
        step += [f"for gradient in {gradients}:"]
        step += ["    torch.nan_to_num_(gradient, nan=0.0, posinf=0.0, neginf=0.0)"]
    if case.clip_norm:
        step += ["torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)"]
    step += [f'print(f"{UPDATE_LINE.format("{index}")}", flush=True)']
    step += ["scaler.step(optimizer)", "scaler.update()"] if case.scaler is not None else ["optimizer.step()"]
    step += ["scheduler.step()"] if case.scheduler is not None else []
    step += ["optimizer.zero_grad()"]
    if case.skip_nonfinite != "grad":
        return lines + step
    skip = _skip(case) + (["scaler.update()"] if case.scaler is not None else [])
    lines += ["if all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None):"]
    return [*lines, *_indented(step), "else:", *_indented(skip)]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _graph_may_be_missing(path: Path) -> bool:
    """Whether some batch of the case gives a loss without a graph, at which a bare `backward()` would raise."""
    torch.manual_seed(0)
    case = protocol.load(path).make()
    inner, missing = case.loss_fn, False

    def loss_fn(model: Any, batch: Any) -> Any:
        nonlocal missing
        loss = inner(model, batch)
        missing = missing or not loss.requires_grad
        return loss

    case.loss_fn = loss_fn
    with contextlib.suppress(Exception):  # the script will raise the same
        protocol.train(case, light=True)
    return missing
