"""`steady run` on a program that knows nothing of it: an ordinary loop, written for what the regime needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..observed import Observed, without_numbers
from ..training import Training
from .guard_entry import plain as plain

BASELINE = "loop"
_ROOT = Path(__file__).resolve().parents[2]
_TIME_LIMIT_S = 3600


def why_not(training: Training) -> str | None:
    return None


def program(training: Training, name: str, seed: int, steps: int) -> str:
    """A plain program that trains this regime; however it ends, its end state goes to the file named first."""
    body = _closure_step(training) if training.closure else _usual_step(training)
    turns = len(training.players) > 1
    lines = [
        "import atexit",
        "import sys",
        "import warnings",
        "",
        "import torch",
        "",
        "from soak.programs import build, write_state",
        "",
        'warnings.filterwarnings("ignore")',
        "torch.set_num_threads(1)",
        f"training = build({name!r}, {seed})",
        "atexit.register(write_state, training, sys.argv[1])",
        "player, = training.players" if not turns else "",
        "model, (optimizer,) = player.model, player.optimizers" if not turns and _one(training) else "",
        "model = player.model" if not turns and not _one(training) else "",
        "scaler, scheduler = training.scaler, training.scheduler",
        "windows = training.windows()" if training.accumulate > 1 else "",
        f"for step in range({steps}):",
        "    training.before(step)",
        *(["    player = training.players[training.turn(step)]", "    model = player.model"] if turns else []),
        *(["    (optimizer,) = player.optimizers"] if turns and _one(training) else []),
        *[f"    {line}" for line in body],
        "    training.averaged.update_parameters(model)" if training.averaged is not None else "",
        "    training.after(step)",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _one(training: Training) -> bool:
    return all(len(player.optimizers) == 1 for player in training.players)


def _usual_step(training: Training) -> list[str]:
    several = not _one(training)
    each = "for optimizer in player.optimizers: " if several else ""
    clip = [f"torch.nn.utils.clip_grad_norm_(model.parameters(), {p.clip})" for p in training.players if p.clip]
    return [
        *_forward_and_backward(training),
        *(["scaler.unscale_(optimizer)"] if training.scaler is not None else []),
        *clip[:1],
        *(_scaled_update(training) if training.scaler is not None else [f"{each}optimizer.step()"]),
        *(["scheduler.step()"] if training.scheduler is not None and training.scaler is None else []),
        f"{each}optimizer.zero_grad()",
    ]


def _forward_and_backward(training: Training) -> list[str]:
    dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(training.precision)
    forward = "loss = player.loss(model, next(training.batches))"
    lines = [f'with torch.autocast("{training.device}", dtype={dtype}):', f"    {forward}"] if dtype else [forward]
    if training.accumulate > 1:
        lines.append("(loss / window).backward()")
        return ["window = next(windows)", "for _ in range(window):", *[f"    {line}" for line in lines]]
    return [*lines, "scaler.scale(loss).backward()" if training.scaler is not None else "loss.backward()"]


def _scaled_update(training: Training) -> list[str]:
    lines = ["scaler.step(optimizer)", "scale = scaler.get_scale()", "scaler.update()"]
    if training.scheduler is not None:
        lines += ["if scaler.get_scale() >= scale:", "    scheduler.step()"]
    return lines


def _closure_step(training: Training) -> list[str]:
    return [
        "batch = next(training.batches)",
        "def closure():",
        "    optimizer.zero_grad()",
        "    loss = player.loss(model, batch)",
        "    loss.backward()",
        "    return loss",
        "optimizer.step(closure)",
        *(["scheduler.step()"] if training.scheduler is not None else []),
    ]


def guarded(build: Callable[[], Training], steps: int) -> Observed:
    """`build` must carry its name and seed, so that the other process can build the same."""
    name, seed = build.name, build.seed  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        script, ends = Path(folder) / "train.py", Path(folder) / "ends.json"
        script.write_text(program(build(), name, seed, steps), encoding="utf-8")
        command = [
            sys.executable, "-m", "steadygrad.commands", "run", "--json", "--run-dir", str(Path(folder) / "run"),
            str(script), str(ends),
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False,
            timeout=_TIME_LIMIT_S,
        )  # fmt: skip
        left = json.loads(ends.read_text(encoding="utf-8")) if ends.is_file() else None
    return _read(done, left)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _read(done: subprocess.CompletedProcess[str], left: dict[str, Any] | None) -> Observed:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    try:
        told: dict[str, Any] = json.loads(lines.pop())
    except (IndexError, json.JSONDecodeError) as error:
        raise RuntimeError(f"`steady run` ended with {done.returncode} and no summary: {done.stderr[-800:]}") from error
    if done.returncode != 0 and not told["halted"]:
        raise RuntimeError(f"the program ended with {done.returncode}: {done.stderr[-800:]}")
    if left is None:
        raise RuntimeError(f"the program left no end state behind: {done.stderr[-800:]}")
    incidents: list[dict[str, Any]] = told["incidents"]
    return Observed(
        state=left["state"],
        bad=left["bad"],
        counts={key: int(told[key]) for key in ("steps", "applied", "skipped", "overflows", "rolled_back")},
        findings=dict(Counter(found["code"] for incident in incidents for found in incident.get("findings") or ())),
        incidents=dict(Counter(incident["symptom"] for incident in incidents)),
        messages=dict(Counter(without_numbers(line) for line in lines)),
        faults=list(told["faults"]),
        halted="halted" if told["halted"] else None,
    )
