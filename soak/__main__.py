"""Rough but healthy training runs, each one plain and at every entry point from the same seed.

python -m soak                                            every regime and entry point, 3,000 updates each
python -m soak --steps 300 --only exact_regression        one of them, shorter
python -m soak --seeds 0,1 --jobs 2 --resume              go on with an interrupted run
python -m soak --only sick                                the sick twins, on which the guard must act
python -m soak --device cuda                              the same on a GPU
python -m soak --seeds 0,1,2 --entry-points plain         only check that the regimes are healthy without a guard
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from soak.devices import choose_device
from soak.jobs import Task, work

DEFAULT_RESULTS = Path("runs") / "soak.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    choose_device(options.device)
    from .regimes import REGIMES
    from .results import FAILED, code_digest, read
    from .runner import steps_of
    from .sick import SICK
    from .table import headline, markdown

    names = _chosen(options, list(REGIMES), list(SICK))
    if options.list:
        for name, build in (REGIMES | SICK).items():
            print(f"{name:32} {' '.join((build.__doc__ or '').split())}")
        return 0
    if not options.resume and options.results.is_file():
        options.results.unlink()
    done = {result.key for result in read(options.results) if result.status != FAILED}
    tasks = []
    for seed in options.seeds:
        for name in names:
            steps = steps_of(name, options.steps)
            left = [each for each in options.entry_points if (name, seed, each, steps, code_digest()) not in done]
            if left:
                tasks.append((name, seed, left, steps, options.results))
    _run(tasks, options.jobs)
    wanted = {
        (name, seed, each, steps_of(name, options.steps), code_digest())
        for name in names
        for seed in options.seeds
        for each in options.entry_points
    }
    results = [result for result in read(options.results) if result.key in wanted]
    results.sort(key=lambda r: (names.index(r.regime), r.seed, options.entry_points.index(r.entry_point)))
    for result in results:
        if not result.good:
            print(f"{result.status}: {result.regime}, seed {result.seed}, {result.entry_point}: {result.why}")
    print(headline(results))
    if options.md:
        options.md.write_text(markdown(results, _command(arguments)), encoding="utf-8")
    return 0 if all(result.good for result in results) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from .entry_points import NAMES, PLAIN

    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000, help="updates of each run")
    parser.add_argument("--seeds", type=_numbers, default=[0], help="comma-separated")
    parser.add_argument("--entry-points", type=_words, default=list(NAMES), help=f"of {', '.join(NAMES)}; or plain")
    parser.add_argument("--only", type=_words, default=[], help="regimes by name, comma-separated")
    parser.add_argument("--sick", action="store_true", help="the sick twins as well; alone with --only sick")
    parser.add_argument("--device", default="cpu", help="where to train; a regime that cannot is left out and counted")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS, help="one line of JSON per result")
    parser.add_argument(
        "--resume", action="store_true", help="keep earlier results of this same code and run what is missing"
    )
    parser.add_argument("--md", type=Path, help="write the table here")
    parser.add_argument("--list", action="store_true", help="name every regime and end")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.entry_points if name not in (*NAMES, PLAIN)]:
        parser.error(f"there is no entry point {unknown[0]!r}; known: {', '.join(NAMES)}")
    return options


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _chosen(options: argparse.Namespace, healthy: list[str], sick: list[str]) -> list[str]:
    if options.only == ["sick"]:
        return sick
    if unknown := [name for name in options.only if name not in healthy and name not in sick]:
        raise SystemExit(f"There is no regime {unknown[0]!r}; `python -m soak --list` names them all.")
    return options.only or [*healthy, *(sick if options.sick else [])]


def _run(tasks: list[Task], jobs: int) -> None:
    start, total = time.perf_counter(), len(tasks)
    if jobs <= 1:
        for number, task in enumerate(tasks, start=1):
            _progress(number, total, start, work(task))
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=12) as pool:
        for number, line in enumerate(pool.imap_unordered(work, tasks), start=1):
            _progress(number, total, start, line)


def _progress(number: int, total: int, start: float, line: str) -> None:
    passed = time.perf_counter() - start
    left = passed / number * (total - number)
    print(f"[{number}/{total}, {passed / 60:.0f} min, about {left / 60:.0f} min left] {line}", flush=True)


def _command(arguments: Sequence[str] | None) -> str:
    words = list(sys.argv[1:] if arguments is None else arguments)
    return " ".join(["python -m soak", *words])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
