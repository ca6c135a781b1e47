"""Why GRPO on a model that sees can stay flat: controls, and one change at a time, all from the same warm start.

`python -m recipes.grpo.vision.study RUN` needs the folder of a finished `train --task vision` and prints a table.

Three controls say what could be had at all: `supervised` is told the right answer for the very scenes GRPO is only
scored on, `blind` is GRPO with grey pictures, and the table's first row is the warm start itself. The other rows
each take one thing away from the recipe.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from steadygrad import UsageError

from .measuring import measure
from .model import SegmentingLlava, make_model
from .settings import Settings
from .task import reinforce
from .warm_start import supervise
from .words import make_processor

VARIANTS: dict[str, tuple[str, Callable[[Settings], Settings]]] = {
    "recipe": ("the recipe", lambda s: s),
    "supervised": ("supervised on the same scenes (upper bound)", lambda s: s),
    "blind": ("GRPO with grey pictures", lambda s: replace(s, blind=True)),
    "few-prompts": ("2 prompts a step, groups of 4", lambda s: replace(s, prompts=2, generations=4)),
    "low-rate": ("a fiftieth of the learning rate", lambda s: replace(s, rate=s.rate / 50)),
    "cold": ("sampled at temperature 0.2", lambda s: replace(s, temperature=0.2)),
    "vision": ("the vision tower trained too", lambda s: replace(s, train_vision=True)),
}


def warm_model(run: Path, settings: Settings, processor: Any) -> SegmentingLlava:
    model = make_model(settings, processor)
    model.load_state_dict(load_file(run / "warm" / "model.safetensors"))
    return model.to(settings.device)


def settings_of(run: Path) -> Settings:
    """The settings that a finished run was made with."""
    path = run / "result.json"
    if not path.is_file():
        raise UsageError(f"{run} holds no finished run. Make one: python -m recipes.grpo train --task vision.")
    kept = json.loads(path.read_text(encoding="utf-8"))["settings"]
    known = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in kept.items() if name in known})


def study(run: Path, names: list[str], *, steps: int | None = None) -> dict[str, dict[str, Any]]:
    """Measures of the warm start and of each variant; kept as `study.json` in the run's folder as they come."""
    given = replace(settings_of(run), show=False, out=run / "study")
    given = given if steps is None else replace(given, steps=steps)
    processor = make_processor(given)
    path = run / "study.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
    if "warm" not in found:
        found["warm"] = {"what": "the warm start", **measure(warm_model(run, given, processor), processor, given)}
    for name in names:
        what, change = VARIANTS[name]
        settings = replace(change(given), out=given.out / name)
        model = warm_model(run, settings, processor)
        if name == "supervised":
            supervise(
                model, processor, settings, settings.out / "run", steps=settings.steps, size=settings.prompts,
                rate=settings.rate, truth=lambda step: 1.0, first_place=0, name=name,
            )  # fmt: skip
            entropy = None
        else:
            curve = reinforce(model, processor, settings)["curve"]
            entropy = curve[-1].get("entropy")
        # A change of temperature is a change of training; all are measured alike.
        measured = measure(model, processor, replace(settings, temperature=given.temperature))
        found[name] = {"what": what, "entropy": entropy, **measured}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(_row(found[name]), flush=True)
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    head = "| from the same warm start | reward | greedy | right thing named | mask IoU | entropy at the end |"
    return "\n".join([head, "|---|---|---|---|---|---|", *(_row(each) for each in found.values())])


def _row(each: dict[str, Any]) -> str:
    sampled, entropy = each["sampled"], each.get("entropy")
    return (
        f"| {each['what']} | {sampled['reward']:.3f} | {each['greedy']['reward']:.3f} | {sampled['named']:.2f} "
        f"| {sampled['iou']:.3f} | {'' if entropy is None else f'{entropy:.3f}'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.grpo.vision.study", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    print(table(study(given.run, given.variants, steps=given.steps)))


if __name__ == "__main__":
    main()
