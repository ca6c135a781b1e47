"""What a run leaves for a person: result.json, result.md, and two pictures beside the adapter."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from recipes.common import plots

from .evaluation import Score, table
from .training import Settings, Trained


def report(name: str, out: Path, settings: Settings, scores: dict[str, Score], trained: Trained) -> dict[str, Any]:
    """Write and print it; returns what result.json holds."""
    result = {
        "recipe": name,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "scores": {label: {k: v for k, v in asdict(each).items() if k != "examples"} for label, each in scores.items()},
        "trained": asdict(trained),
        "settings": asdict(settings),
        "examples": [list(example) for example in list(scores.values())[-1].examples],
    }
    lines = [
        table(scores),
        "",
        f"{trained.steps} steps in {trained.seconds:.0f} s ({trained.samples_per_second:.1f} samples/s, "
        f"{settings.precision}), loss {_change(trained)}; {trained.refused} updates "
        f"refused, {trained.non_finite_weights} non-finite weights. {result['hardware']}, {result['date']}.",
    ]
    (out / "result.json").write_text(json.dumps(result, indent=2))
    after = list(scores.values())[-1]
    (out / "run" / "metrics.json").write_text(
        json.dumps({"accuracy": after.accuracy, "answer_rate": after.answer_rate}) + "\n"
    )
    (out / "result.md").write_text("\n".join(lines) + "\n")
    plots.bars(
        out / "scores.svg",
        f"{name}: before and after",
        {
            "accuracy": {label: each.accuracy for label, each in scores.items()},
            "answer_rate": {label: each.answer_rate for label, each in scores.items()},
        },
    )
    history = json.loads((out / "log.json").read_text())
    curve = [(row["step"], row["loss"]) for row in history if isinstance(row.get("loss"), float)]
    plots.lines(out / "loss.svg", f"{name}: training loss", {"loss": curve})
    print("\n".join(lines))
    print(f"pictures: {out / 'scores.svg'}, {out / 'loss.svg'}; journal: steady report {out / 'run'}")
    return result


def _change(trained: Trained) -> str:
    if math.isnan(trained.first_loss):
        return "not recorded"
    return f"{trained.first_loss:.3f} -> {trained.last_loss:.3f}"


def hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
