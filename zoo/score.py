"""Score entry points and other tools on a folder of cases.

    python -m zoo.score --cases DIR --json OUT --tools guard,attach,run,upper_bound,detect_anomaly

Every case runs in a separate process with a time limit; a crash or a timeout counts against the tool. Every answer and
field goes to the JSON file, one table and the misses to the terminal. Cases for a GPU are scored there by the same
command; a folder of them brings its own `protocol_gpu.py`, and `--jobs 1` keeps them from sharing the device.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from steadygrad.diagnosis.causes import judges
from steadygrad.diagnosis.remedies import remedies

from .entry_points import ENTRY_POINTS, UPPER_BOUND
from .patients import load_case, settings_of
from .tools import MAY_NOT_DIAGNOSE, TOOLS
from .truth import (
    FIELDS,
    FINITE,
    LEFT_OUT,
    Answer,
    Subject,
    case_line,
    honest,
    judge,
    marked_line,
    wrongly_verified,
)

HERE = Path(__file__).parent
NOT_ASKED = "n/a"
COLUMNS = ("detected", "non_finite", *FIELDS[1:], "wrongly_verified", "false_alarms", "left_out")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zoo.score", description=__doc__)
    parser.add_argument("--cases", type=Path, default=HERE / "cases", help="folder of case files")
    parser.add_argument("--json", type=Path, help="write every answer and every field here")
    parser.add_argument("--tools", default=",".join(TOOLS), help="comma-separated; known: " + ", ".join(TOOLS))
    parser.add_argument("--only", default="*", help="globs over file names, comma-separated: '0*.py,21*'")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th case, as a sample")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="where the sample begins")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one case")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    tools = [name.strip() for name in options.tools.split(",") if name.strip()]
    if unknown := [name for name in tools if name not in TOOLS]:
        parser.error(f"unknown tool {unknown[0]!r}; known: {', '.join(TOOLS)}")
    patterns = [pattern.strip() for pattern in options.only.split(",")]
    found = {path for pattern in patterns for path in options.cases.glob(pattern)}
    paths = sorted(path for path in found if path.suffix == ".py" and path.stem != "__init__")
    paths = paths[options.first :: max(options.every, 1)]
    if not paths:
        parser.error(f"no case matches {options.only!r} in {options.cases}")
    torch.set_num_threads(1)
    _load_before_forking(paths)
    jobs = [(tool, path) for tool in tools for path in paths]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda job: _one(*job, limit=options.limit), jobs))
    if options.json:
        options.json.write_text(json.dumps(_report(rows), indent=1), encoding="utf-8")
    _print(rows, tools)
    return 0


def _load_before_forking(paths: list[Path]) -> None:
    """What nearly every case would load for itself, seconds each time; a child has what its parent had."""
    modules = ["torch._dynamo", "steadygrad.integrations.guard"]
    if any("hfutil" in path.read_text(encoding="utf-8") for path in paths):
        modules += ["transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama"]
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    judges()
    remedies()


def _one(tool: str, path: Path, *, limit: float) -> dict[str, Any]:
    """One tool on one case, in a process of its own."""
    # A device cannot be used by a child of a process that has looked at it.
    context = multiprocessing.get_context("spawn" if "cuda" in path.read_text(encoding="utf-8") else "fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(tool, path, limit, send), daemon=False)
    started = time.monotonic()
    process.start()
    send.close()
    result: dict[str, Any] | None = None
    if receive.poll(limit):
        try:
            result = receive.recv()
        except EOFError:
            result = None
    if process.is_alive() and result is None:
        process.kill()
    process.join(5)
    if process.is_alive():
        process.kill()
    seconds = time.monotonic() - started
    if result is None:
        late = seconds >= limit
        result = {"answer": Answer(error=f"over {limit:g} s" if late else "the process died"), "truth": None}
    answer: Answer = result["answer"]
    answer.seconds = round(seconds, 2)
    truth = result["truth"] or load_case(str(path)).TRUTH
    scored = _scored(answer, truth, path, result.get("accumulation", 1))
    print(f"{tool:26s}{path.stem:50s}{seconds:7.1f} s  {_in_short(answer, scored)}", file=sys.stderr, flush=True)
    return {"tool": tool, "case": path.stem, "path": path, "answer": answer, "truth": truth, **scored}


def _in_short(answer: Answer, scored: dict[str, Any]) -> str:
    wrong = [name for name, right in scored["fields"].items() if right is False]
    wrong += [f"wrongly verified {slug}" for slug in scored["wrongly_verified"]]
    return answer.error or ", ".join(wrong) or ("false alarm" if scored["false_alarm"] else "right")


def _work(tool: str, path: Path, limit: float, send: Any) -> None:
    """In the child: build the case, let the tool look at it, send back what it said. Chatter goes nowhere."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    truth: dict[str, Any] | None = None
    accumulation = 1
    try:
        module = load_case(str(path))
        truth = dict(module.TRUTH)
        torch.manual_seed(0)
        case = module.make()
        accumulation = case.accumulation
        with settings_of(case):
            answer = TOOLS[tool](Subject(case, path, limit))
    except BaseException as error:  # a crash of any kind is the tool's
        where = traceback.extract_tb(error.__traceback__)[-1]
        answer = Answer(error=f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:300])
    send.send({"answer": answer, "truth": truth, "accumulation": accumulation})
    send.close()


def _scored(answer: Answer, truth: dict[str, Any], path: Path, accumulation: int) -> dict[str, Any]:
    """The fields of a failure, or whether a control was left alone. Nothing of a case the tool was not made for."""
    control, left_out = truth["symptom"] == "none", answer.error.startswith(LEFT_OUT)
    alarm = answer.alarm_step is not None or bool(answer.error)
    asked = not control and not left_out
    return {
        "control": control,
        "left_out": left_out,
        "finite": truth["symptom"] in FINITE,
        "false_alarm": control and not left_out and alarm,
        "fields": judge(answer, truth, path, accumulation) if asked else {},
        "wrongly_verified": wrongly_verified(answer, truth) if asked else [],
        "honest": left_out or honest(answer, truth),
    }


def _report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    kept = ("tool", "case", "control", "left_out", "finite", "false_alarm", "fields", "wrongly_verified", "honest")
    cases = [{name: row[name] for name in kept} | {"answer": dataclasses.asdict(row["answer"])} for row in rows]
    return {"torch": torch.__version__, "python": sys.version.split()[0], "totals": _totals(rows), "cases": cases}


def _totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """One line per tool: right answers of those asked for each field, and what must not happen, of the cases asked."""
    found: dict[str, dict[str, str]] = {}
    for tool in dict.fromkeys(row["tool"] for row in rows):
        mine = [row for row in rows if row["tool"] == tool]
        asked = [row for row in mine if not row["left_out"]]
        sick = [row for row in asked if not row["control"]]
        controls = [row for row in asked if row["control"]]
        line = {name: _share(sick, name) for name in FIELDS}
        line["non_finite"] = _share([row for row in sick if not row["finite"]], "detected")
        line["wrongly_verified"] = f"{sum(bool(row['wrongly_verified']) for row in sick)}/{len(sick)}"
        if tool in MAY_NOT_DIAGNOSE and not any(row["answer"].phase for row in sick):
            line |= dict.fromkeys((*FIELDS[1:], "wrongly_verified"), NOT_ASKED)
        line["false_alarms"] = f"{sum(row['false_alarm'] for row in controls)}/{len(controls)}"
        line["left_out"] = str(len(mine) - len(asked))
        found[tool] = {name: line[name] for name in COLUMNS}
    return found


def _share(rows: list[dict[str, Any]], name: str) -> str:
    asked = [row["fields"][name] for row in rows if row["fields"][name] is not None]
    return f"{sum(asked)}/{len(asked)}"


def _print(rows: list[dict[str, Any]], tools: list[str]) -> None:
    totals = _totals(rows)
    for row in rows:
        if row["tool"] in ENTRY_POINTS or row["tool"] in UPPER_BOUND:
            _print_miss(row, [name for name in FIELDS if totals[row["tool"]][name] != NOT_ASKED])
    print(f"{'tool':26s}" + "".join(f"{name:>17s}" for name in COLUMNS))
    for tool in tools:
        print(f"{tool:26s}" + "".join(f"{totals[tool][name]:>17s}" for name in COLUMNS))


def _print_miss(row: dict[str, Any], asked: list[str]) -> None:
    answer, truth, path = row["answer"], row["truth"], row["path"]
    missed = [name for name in asked if row["fields"].get(name) is False] + row["wrongly_verified"]
    if row["left_out"]:
        print(f"{row['tool']} {row['case']}: {answer.error}")
    elif missed or row["false_alarm"] or answer.error:
        print(f"{row['tool']} {row['case']}: {', '.join(missed) or 'false alarm'}  {answer.error}")
        print(
            f"    said   {answer.alarm_step} {answer.phase} {answer.op} {answer.module!r}"
            f" line {case_line(answer, path)} rows {answer.rows} {answer.cause}"
            f" {answer.verified} ({answer.because})"
        )
        print(
            f"    truth  {truth['first_bad_step']} {truth['phase']} {truth['op']} {truth['module']!r}"
            f" line {marked_line(path, truth['line_marker'])} rows {truth['bad_rows']} {truth['cause']}"
            f" {truth['fixes_that_work']}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
