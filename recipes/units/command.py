"""What the three recipes have in common on the command line: `train`, `test` and `load`, and how a mistake is told."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import torch

import steadygrad as sg
from recipes.common.speaking import helped, put_aside, short_log_lines
from steadygrad import UsageError

from .base_llm import BaseLLM
from .conversions import METRIC, PAIRS, Pair, Question, drawn, factor, questions, read_pairs, split
from .evaluation import Score, score, table
from .training import Settings, Stopped

REMEMBERED = ("quick", "units", "model")
TEST_SEED = 20
"""The questions of the test do not depend on --seed, so that runs with different seeds answer the same ones."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What makes one recipe of the three: what the model is told, and what it is taught to reply."""

    name: str
    instruction: str
    reply: Callable[[Question], str]
    max_new_tokens: int
    settings: Settings = field(default_factory=Settings)
    quick: dict[str, Any] = field(default_factory=dict)
    """What --quick changes besides what it changes for all."""
    quick_questions: int = 32


def main(recipe: Recipe, train: Callable[[Recipe, Any], dict[str, Any]], argv: Sequence[str] | None = None) -> int:
    """Run one verb. 0: done. 1: halted by the guard. 2: a mistake in what was given. 130: stopped by Ctrl-C."""
    what = {"sft": "a small model learns to convert units", "cot": "it learns to show its steps as well"}
    said = what.get(recipe.name, "it learns from its own right answers, after recipes.cot")
    if helped(
        argv, recipe.name, f"{said} (docs/recipes/units.md)", "train --quick", "train, test, load VALUE UNIT UNIT"
    ):
        return 0
    short_log_lines()
    options = parser(recipe).parse_args(argv)
    options.out = Path(options.out or f"runs/recipes/{recipe.name}")
    remembered(options)
    verbs: dict[str, Callable[[Recipe, Any], dict[str, Any]]] = {"train": train, "test": test, "load": load}
    try:
        with redirect_stdout(sys.stderr if options.json else sys.stdout):
            if getattr(options, "sick", False):
                from .sick import show_sick

                result = show_sick(recipe, options)
            else:
                result = verbs[options.verb](recipe, options)
    except UsageError as mistake:
        print(f"recipes.{recipe.name}: {mistake}", file=sys.stderr)
        return 2
    except sg.SteadyError as halted:
        print(f"recipes.{recipe.name}: {halted}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Stopped) as stopped:
        print(f"recipes.{recipe.name}: {stopped or 'Stopped.'}", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(result, indent=2))
    return 0


def remembered(options: Any) -> None:
    """`train` leaves what the model learns and from what; `test` and `load` then ask about the same."""
    known = options.out / "asked.json"
    if options.verb == "train" and not options.sick:
        if not options.resume:
            put_aside(options.out, "settings.json")
        options.out.mkdir(parents=True, exist_ok=True)
        known.write_text(json.dumps({name: getattr(options, name) for name in REMEMBERED}) + "\n")
    elif options.verb != "train" and known.is_file():
        for name, value in json.loads(known.read_text()).items():
            if name in REMEMBERED and not getattr(options, name):
                setattr(options, name, value)


def parser(recipe: Recipe) -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--out", help=f"folder of the run; runs/recipes/{recipe.name}")
    shared.add_argument("--model", help="a wheel, GGUF file, model folder or hub id; SmolLM2-135M-Instruct")
    shared.add_argument("--cache", help="where the unpacked model is kept; the user's cache folder")
    shared.add_argument("--units", help="a file with two units a line, in place of the 28 pairs of the recipe")
    shared.add_argument(
        "--questions", type=int, help=f"how many to test with; 500, or {recipe.quick_questions} with --quick"
    )
    shared.add_argument("--seed", type=int, default=0)
    shared.add_argument("--quick", action="store_true", help="about three minutes on two idle cores")
    shared.add_argument("--json", action="store_true", help="the result as JSON on standard output, the rest on error")
    top = argparse.ArgumentParser(prog=f"python -m recipes.{recipe.name}")
    verbs = top.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", parents=[shared], help="test, train under guard, test again")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    train.add_argument("--sick", action="store_true", help="the failing configuration, plain and then under guard")
    train.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    train.add_argument("--samples", type=int, help="how many questions to train on; all of the training side")
    train.add_argument("--no-gradient-checkpointing", action="store_true")
    for name in ("epochs", "learning_rate"):
        train.add_argument(f"--{name.replace('_', '-')}", type=float)
    for name in ("batch_size", "rank", "max_steps"):
        train.add_argument(f"--{name.replace('_', '-')}", type=int)
    if recipe.name == "rft":
        train.add_argument("--start", default="runs/recipes/cot", help="folder of the run whose adapter samples")
        train.add_argument("--tries", type=int, default=4, help="samples for each question")
        train.add_argument("--temperature", type=float, default=0.7)
    verbs.add_parser("test", parents=[shared], help="the adapter in --out beside the untrained model")
    asks = verbs.add_parser("load", parents=[shared], help="load the adapter in --out and ask it")
    asks.add_argument("value", help="such as 47")
    asks.add_argument("unit", help="such as mile")
    asks.add_argument("target", help="such as kilometer")
    return top


def settings_of(recipe: Recipe, options: Any) -> Settings:
    """The recipe's numbers, those of --quick, then what was said on the command line."""
    settings = recipe.settings
    if options.quick:
        settings = replace(settings.quick(), **recipe.quick)
    gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    precision = options.precision if options.precision != "auto" else "bf16" if gpu else "fp32"
    said = {name: getattr(options, name) for name in ("epochs", "learning_rate", "batch_size", "rank", "max_steps")}
    said = {name: value for name, value in said.items() if value is not None}
    for name, value in said.items():
        if value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, not {value}.")
    if options.no_gradient_checkpointing:
        said["gradient_checkpointing"] = False
    return replace(settings, seed=options.seed, precision=precision, **said)


def pairs_of(options: Any) -> tuple[Pair, ...]:
    return read_pairs(options.units) if options.units else METRIC if options.quick else PAIRS


def two_sides(recipe: Recipe, options: Any) -> tuple[list[Question], list[Question]]:
    """The questions to train on, and those that the test asks."""
    training, testing = split(questions(pairs_of(options)))
    usual = recipe.quick_questions if options.quick else 500
    count = options.questions if options.questions is not None else usual
    return training, drawn(testing, count, seed=TEST_SEED)


def asked_of(recipe: Recipe, options: Any, adapter: Path | None = None) -> BaseLLM:
    """The model as it is asked: half precision on a GPU, with the adapter merged into it."""
    return BaseLLM(options.model, instruction=recipe.instruction, cache=options.cache, adapter=adapter)


def test(recipe: Recipe, options: Any) -> dict[str, Any]:
    """Before and after, for an adapter that was trained earlier."""
    _, testing = two_sides(recipe, options)
    after = score(asked_of(recipe, options, options.out / "adapter"), testing, max_new_tokens=recipe.max_new_tokens)
    before = score(asked_of(recipe, options), testing, max_new_tokens=recipe.max_new_tokens)
    scores = {"before": before, "after": after}
    print(table(scores))
    return {"recipe": recipe.name, **{name: told(each) for name, each in scores.items()}}


def load(recipe: Recipe, options: Any) -> dict[str, Any]:
    """One question, asked."""
    try:
        value = Decimal(options.value)
    except InvalidOperation:
        raise UsageError(f"{options.value!r} is not a number.") from None
    factor(options.unit, options.target)  # a unit that does not exist is told before the model is loaded
    question = Question(value, options.unit, options.target)
    llm = asked_of(recipe, options, options.out / "adapter")
    said = llm.generate([str(question)], max_new_tokens=recipe.max_new_tokens)[0][0]
    print(f"{question}\n{said}\n(true: {question.answer})")
    taught = pairs_of(options)
    if (options.unit, options.target) not in {*taught, *((b, a) for a, b in taught)}:
        asked = f"{options.unit} to {options.target}"
        print(f"not taught: this run learnt {len(taught)} unit pairs, and {asked} is none of them")
    return {"question": str(question), "said": said, "answer": llm.answer_in(said), "truth": question.truth}


def told(each: Score) -> dict[str, Any]:
    return {"accuracy": each.accuracy, "answer_rate": each.answer_rate, "questions": each.num_questions}
