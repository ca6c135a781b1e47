"""What several seeds came to, as Markdown: `python -m recipes.grpo.vision.report RUN [RUN ...] --where "..."`.

The runs are of one kind of pictures. Shapes make a page, photographs and digits a section to put below it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steadygrad import UsageError

from .study import table

TITLES = {
    "shapes": "# GRPO on a model that sees and segments",
    "photographs": "## Shapes on photographs",
    "digits": "## Handwritten digits",
}


def read(run: Path) -> dict[str, Any]:
    path = run / "result.json"
    if not path.is_file():
        raise UsageError(f"{run} holds no finished run. Make one: python -m recipes.grpo train --task vision.")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def report(runs: Sequence[Path], *, where: str, date: str) -> str:
    """A row a seed, their mean, the controls, and the study of the first run that has one."""
    results = [read(run) for run in runs]
    settings = results[0]["settings"]
    kinds = {each["settings"].get("pictures", "shapes") for each in results}
    if len(kinds) > 1:
        raise UsageError(f"These runs are of several pictures ({', '.join(sorted(kinds))}); report them apart.")
    pictures = kinds.pop()
    option = "" if pictures == "shapes" else f" --pictures {pictures}"
    lines = [
        TITLES[pictures],
        "",
        f"{where}. {date}. `python -m recipes.grpo train --task vision{option} --seed N`.",
        "",
        f"{settings['warm_steps']} + {settings['loose_steps']} supervised steps of {settings['warm_batch']} rows, "
        f"then {settings['steps']} steps of GRPO with {settings['prompts']} prompts of {settings['generations']} "
        f"completions, rate {settings['rate']:g}. Measured on {settings['measured_on']} held-out scenes, sampled at "
        f"temperature {settings['temperature']:g}; the reward of a perfect answer is 1.",
        "",
        "| seed | reward | greedy | right thing named | mask IoU | IoU, greedy | shuffled pictures | grey pictures "
        "| refused | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_row(str(each["settings"]["seed"]), [each]) for each in results),
        _row("mean", results),
    ]
    gains = [each["after"]["sampled"]["reward"] - each["before"]["sampled"]["reward"] for each in results]
    masks = [each["after"]["sampled"]["iou"] - each["before"]["sampled"]["iou"] for each in results]
    lines += [
        "",
        f"Mean reward {_signed(gains)}, mask IoU {_signed(masks)} over {len(results)} seed{'s' * (len(results) > 1)}. "
        "Shuffled and grey pictures are shown to the trained model: its reward without seeing.",
        "",
        "By kind of question, the right thing named (mean of the seeds, sampled):",
        "",
        f"| | by colour | by {'digit' if pictures == 'digits' else 'shape'} | by place |",
        "|---|---|---|---|",
        *(
            f"| {name} | "
            + " | ".join(
                f"{_mean([each[key]['sampled'][f'named_{kind}'] for each in results]):.2f}"
                for kind in ("colour", "shape", "place")
            )
            + " |"
            for name, key in (("warm start", "before"), ("after GRPO", "after"))
        ),
    ]
    for run in runs:
        if (path := run / "study.json").is_file():
            seed = read(run)["settings"]["seed"]
            lines += ["", f"## Why it can stay flat (seed {seed})", "", table(json.loads(path.read_text()))]
            break
    return "\n".join(lines) + "\n"


def _row(name: str, results: Sequence[dict[str, Any]]) -> str:
    def both(way: str, what: str) -> str:
        first, last = (_mean([each[when][way][what] for each in results]) for when in ("before", "after"))
        return f"{first:.3f} -> {last:.3f}"

    def after(way: str) -> str:
        return f"{_mean([each['after'][way]['reward'] for each in results]):.3f}"

    refused = sum(each["grpo"]["refused"] for each in results)
    minutes = _mean([each["grpo"]["seconds"] for each in results]) / 60
    cells = [
        name, both("sampled", "reward"), both("greedy", "reward"), both("sampled", "named"), both("sampled", "iou"),
        both("greedy", "iou"), after("shuffled"), after("grey"), str(refused), f"{minutes:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _signed(values: Sequence[float]) -> str:
    return f"{_mean(values):+.3f} ({', '.join(f'{value:+.3f}' for value in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.grpo.vision.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--where", required=True, help="the hardware and versions, in words")
    given = parser.parse_args()
    print(report(given.runs, where=given.where, date=time.strftime("%Y-%m-%d")), end="")


if __name__ == "__main__":
    main()
