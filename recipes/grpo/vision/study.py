"""Why GRPO on a model that sees can stay flat: controls, and one change at a time.

`python -m recipes.grpo.vision.study RUN` needs the folder of a finished `train --task vision` and prints a table.

Controls say what could be had at all: `supervised` is told the right answer for the very scenes that GRPO is only
scored on, and `blind` is GRPO with grey pictures. The other rows each change one thing of the recipe. All begin at the
warm start of the run, but for the last two: theirs never learnt that questions matter.
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
from .warm_start import supervise, warm_started
from .words import make_processor


def _undirected(settings: Settings) -> Settings:
    steps = settings.warm_steps + settings.loose_steps
    return replace(settings, warm_steps=0, loose_steps=steps, loose_truth=0.0)


VARIANTS: dict[str, tuple[str, Callable[[Settings], Settings]]] = {
    "supervised": ("told the right answers for the same scenes", lambda s: s),
    "blind": ("GRPO with grey pictures", lambda s: replace(s, blind=True)),
    "few-prompts": ("GRPO, 2 prompts a step in groups of 4", lambda s: replace(s, prompts=2, generations=4)),
    "low-rate": ("GRPO at a hundredth of the rate", lambda s: replace(s, rate=s.rate / 100)),
    "high-rate": ("GRPO at ten times the rate", lambda s: replace(s, rate=s.rate * 10)),
    "cold": ("GRPO sampled at temperature 0.2", lambda s: replace(s, temperature=0.2)),
    "vision": ("GRPO, the vision tower trained too", lambda s: replace(s, train_vision=True)),
    "undirected": ("undirected warm start, then GRPO", _undirected),
    "undirected-supervised": ("undirected warm start, then told the right answers", _undirected),
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
    """Measures of the run and of each variant; kept as `study.json` in the run's folder as they come."""
    given = replace(settings_of(run), show=False, out=run / "study")
    given = given if steps is None else replace(given, steps=steps)
    processor = make_processor(given)
    path, result = run / "study.json", json.loads((run / "result.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
    found["warm"] = {"what": "the warm start", **result["before"]}
    found["recipe"] = {"what": "**then GRPO, the recipe**", **result["after"], "curve": result["grpo"]["curve"]}
    for name in names:
        what, change = VARIANTS[name]
        settings = replace(change(given), out=given.out / name)
        if settings.warm_plain() == given.warm_plain():
            model = warm_model(run, settings, processor)
        else:
            model, _ = warm_started(replace(settings, out=given.out / "warm-start"), processor)
            kept = f"{name.removesuffix('-supervised')}-warm"
            found.setdefault(kept, {"what": what.split(",")[0], **measure(model, processor, given)})
        curve = None
        if name.endswith("supervised"):
            supervise(
                model, processor, settings, settings.out / "run", steps=settings.steps, size=settings.prompts,
                rate=settings.rate, truth=lambda step: 1.0, first_place=0, name=name,
            )  # fmt: skip
        else:
            curve = reinforce(model, processor, settings)["curve"]
        # A change of temperature is a change of training; all are measured alike.
        found[name] = {"what": what, "curve": curve, **measure(model, processor, given)}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(_row(found[name]), flush=True)
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    head = "| | reward | greedy | right thing named | mask IoU | entropy a token, at first and at last |"
    return "\n".join([head, "|---|---|---|---|---|---|", *(_row(each) for each in found.values())])


def _row(each: dict[str, Any]) -> str:
    sampled, curve = each["sampled"], each.get("curve")
    entropy = f"{curve[0]['entropy']:.3f} -> {curve[-1]['entropy']:.3f}" if curve else ""
    return (
        f"| {each['what']} | {sampled['reward']:.3f} | {each['greedy']['reward']:.3f} | {sampled['named']:.2f} "
        f"| {sampled['iou']:.3f} | {entropy} |"
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
