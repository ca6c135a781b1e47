"""`python -m recipes.grpo train|eval|faults`: see docs/recipes/grpo.md."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import steadygrad as sg
from recipes.common.speaking import helped, short_log_lines

from .trainer import Stopped

RUNS = Path("runs/recipes/grpo")
TASKS = ("vision", "text", "toy")
PICTURES = ("shapes", "photographs", "digits")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m recipes.grpo", description="GRPO that stays finite.")
    verbs = top.add_subparsers(dest="verb", required=True)
    for name, purpose in (
        ("train", "train under guard, with both logits processors"),
        ("eval", "measure what was trained"),
        ("faults", "train the toy while faults are injected, and count what was applied"),
    ):
        verb = verbs.add_parser(name, help=purpose)
        verb.add_argument("--out", type=Path, help="folder of the run; runs/recipes/grpo/TASK, or TASK-PICTURES")
        verb.add_argument("--seed", type=int, default=0)
        verb.add_argument(
            "--json", action="store_true", help="the result as JSON on standard output, the rest on error"
        )
        if name != "faults":
            verb.add_argument("--task", choices=TASKS, default="vision")
            verb.add_argument("--quick", action="store_true", help="a few minutes on two idle cores")
            verb.add_argument("--pictures", choices=PICTURES, help="vision: what the pictures show; shapes")
            verb.add_argument("--model", help="text: a wheel, GGUF file, model folder or hub id; SmolLM2-135M-Instruct")
            verb.add_argument("--questions", type=int, help="text: how many to test with; 500, or 32 with --quick")
            verb.add_argument("--cache", help="text: where the unpacked model is kept; the user's cache folder")
        if name != "eval":
            verb.add_argument("--steps", type=int, help="how many steps; each task has its own number")
        if name == "train":
            verb.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
            verb.add_argument("--sick", action="store_true", help="logits that overflow in FP16: four runs, one table")
            verb.add_argument("--start", help="text: folder of the recipes.sft run to begin from; runs/recipes/sft")
            verb.add_argument("--fresh", action="store_true", help="text: begin with a fresh adapter")
            verb.add_argument("--seconds", type=float, help="text: end training after this long")
            verb.add_argument("--learning-rate", type=float)
            verb.add_argument(
                "--clip-value", type=float, help="hold sampled logits within +- this; 30, or 0 for no limit"
            )
            verb.add_argument("--batch-size", type=int, help="completions a step")
            verb.add_argument("--group", type=int, help="completions of one prompt")
        if name == "faults":
            verb.add_argument("--rate", type=float, default=0.1, help="chance of a fault in training, and in sampling")
            verb.add_argument("--flips", action="store_true", help="flip exponent bits of weights as well")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """0: done. 1: halted by the guard. 2: a mistake in what was given. 130: stopped by Ctrl-C."""
    what = "reinforcement learning that stays finite, on pictures, text or a toy (docs/recipes/grpo.md)"
    if helped(arguments, "grpo", what, "train --quick", "train, eval, faults"):
        return 0
    short_log_lines()
    given = parser().parse_args(arguments)
    try:
        with redirect_stdout(sys.stderr if given.json else sys.stdout):
            result = run(given)
    except sg.SteadyError as error:
        print(f"recipes.grpo: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Stopped) as stopped:
        print(f"recipes.grpo: {stopped or 'Stopped.'}", file=sys.stderr)
        return 130
    if given.json:
        print(json.dumps(result, indent=2))
    return 130 if result.get("interrupted") else 0


def run(given: argparse.Namespace) -> dict[str, Any]:
    if getattr(given, "steps", None) is not None and given.steps < 1:
        raise sg.UsageError(f"--steps must be above 0, not {given.steps}.")
    if given.verb == "faults":
        from .faults import count_faults

        return count_faults(
            given.out or RUNS / "faults", steps=given.steps or 500, rate=given.rate, flips=given.flips, seed=given.seed
        )
    if getattr(given, "sick", False):
        from .sick import show_sick

        return show_sick(given.out or RUNS / "sick", seed=given.seed, steps=given.steps)
    shown = "" if given.pictures in (None, "shapes") else f"-{given.pictures}"
    out = given.out or RUNS / f"{given.task}{shown}"
    tasks = {"vision": vision, "text": text, "toy": toy}
    return tasks[given.task](given, out)


def toy(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    from . import toy as task

    settings = changed(task.SETTINGS, given)
    if given.verb == "eval":
        return task.evaluate(settings, out)
    return task.train(settings, out, resume=given.resume)


def text(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    from . import text as task

    settings = changed(task.settings_for(quick=given.quick), given)
    where = {"quick": given.quick, "model": given.model, "cache": given.cache}
    if given.verb == "eval":
        return task.evaluate(settings, out, **where)
    start = task.started_from(given.start, fresh=given.fresh)
    return task.train(settings, out, resume=given.resume, start=start, seconds=given.seconds, **where)


def vision(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    try:
        task = importlib.import_module("recipes.grpo.vision.task")
        kind = importlib.import_module("recipes.grpo.vision.settings").Settings
    except ImportError as missing:
        raise sg.UsageError(f"The task vision needs {missing.name}: pip install -e '.[recipes]'.") from None
    settings = changed(kind.of(given.pictures or "shapes", quick=given.quick), given)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = replace(settings, out=out, resume=getattr(given, "resume", False), device=device)
    answer: dict[str, Any] = task.evaluate(settings) if given.verb == "eval" else task.train(settings)
    return answer


def changed(settings: Any, given: argparse.Namespace) -> Any:
    """The task's settings with what was said on the command line."""
    said = {"seed": given.seed}
    for name in ("steps", "learning_rate", "batch_size", "group", "questions", "pictures", "clip_value"):
        if getattr(given, name, None) is not None:
            if not hasattr(settings, name):
                raise sg.UsageError(f"--{name.replace('_', '-')} is not for this task.")
            said[name] = getattr(given, name)
    return replace(settings, **said)


if __name__ == "__main__":
    sys.exit(main())
