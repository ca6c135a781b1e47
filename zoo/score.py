"""Score tools on a folder of cases: `python -m zoo.score --cases DIR --json OUT --tools steadygrad,detect_anomaly`.

Every case runs in a process of its own with a time limit; a crash or a timeout counts against the tool. One line per
case and field goes to the JSON file, a table and the misses to the terminal.
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

from .patients import load_case
from .tools import SIDE_BY_SIDE, TOOLS
from .truth import FIELDS, LEFT_OUT, Answer, case_line, judge, marked_line

HERE = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zoo.score", description=__doc__)
    parser.add_argument("--cases", type=Path, default=HERE / "cases", help="folder of case files")
    parser.add_argument("--json", type=Path, help="write every answer and every field here")
    parser.add_argument("--tools", default=",".join(SIDE_BY_SIDE), help="comma-separated; known: " + ", ".join(TOOLS))
    parser.add_argument("--only", default="*", help="glob over file names, for example '0*.py'")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one case")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    tools = [name.strip() for name in options.tools.split(",") if name.strip()]
    if unknown := [name for name in tools if name not in TOOLS]:
        parser.error(f"unknown tool {unknown[0]!r}; known: {', '.join(TOOLS)}")
    paths = sorted(
        path for path in options.cases.glob(options.only) if path.suffix == ".py" and path.stem != "__init__"
    )
    if not paths:
        parser.error(f"no case matches {options.only!r} in {options.cases}")
    torch.set_num_threads(1)
    _load_before_forking(paths)
    jobs = [(tool, path) for tool in tools for path in paths]
    with ThreadPoolExecutor(options.jobs) as pool:
        answered = list(pool.map(lambda job: _one(*job, limit=options.limit), jobs))
    rows = [row for row in answered if not row["answer"].error.startswith(LEFT_OUT)]
    for row in answered:
        if row not in rows:
            print(f"left out: {row['case']}: {row['answer'].error.removeprefix(LEFT_OUT).strip()}")
    if options.json:
        options.json.write_text(json.dumps(_report(rows), indent=1), encoding="utf-8")
    _print(rows, tools)
    return 0


def _load_before_forking(paths: list[Path]) -> None:
    """What nearly every case would load for itself, seconds each time; a child has what its parent had."""
    modules = ["torch._dynamo", "steadygrad.guard"]
    if any("hfutil" in path.read_text(encoding="utf-8") for path in paths):
        modules += ["transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama"]
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    judges()
    remedies()


def _one(tool: str, path: Path, *, limit: float) -> dict[str, Any]:
    """One tool on one case, in a process of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(tool, path, send), daemon=False)
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
    scored = _scored(answer, truth, path)
    wrong = [name for name, right in scored["fields"].items() if right is False]
    words = answer.error or ", ".join(wrong) or ("false alarm" if scored["false_alarm"] else "right")
    print(f"{tool:26s}{path.stem:50s}{seconds:7.1f} s  {words}", file=sys.stderr, flush=True)
    return {"tool": tool, "case": path.stem, "path": path, "answer": answer, "truth": truth, **scored}


def _work(tool: str, path: Path, send: Any) -> None:
    """In the child: build the case, let the tool look at it, send back what it said. Chatter goes nowhere."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    truth: dict[str, Any] | None = None
    try:
        module = load_case(str(path))
        truth = dict(module.TRUTH)
        torch.manual_seed(0)
        answer = TOOLS[tool](module.make())
    except BaseException as error:  # a crash of any kind is the tool's
        where = traceback.extract_tb(error.__traceback__)[-1]
        answer = Answer(error=f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:300])
    send.send({"answer": answer, "truth": truth})
    send.close()


def _scored(answer: Answer, truth: dict[str, Any], path: Path) -> dict[str, Any]:
    if truth["symptom"] == "none":
        return {"control": True, "false_alarm": answer.alarm_step is not None or bool(answer.error), "fields": {}}
    return {"control": False, "false_alarm": False, "fields": judge(answer, truth, path)}


def _report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    cases = [
        {
            "tool": row["tool"],
            "case": row["case"],
            "control": row["control"],
            "false_alarm": row["false_alarm"],
            "fields": row["fields"],
            "answer": dataclasses.asdict(row["answer"]),
        }
        for row in rows
    ]
    return {"torch": torch.__version__, "python": sys.version.split()[0], "totals": _totals(rows), "cases": cases}


def _totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for tool in dict.fromkeys(row["tool"] for row in rows):
        mine = [row for row in rows if row["tool"] == tool]
        sick = [row for row in mine if not row["control"]]
        line = {}
        for name in FIELDS:
            asked = [row["fields"][name] for row in sick if row["fields"][name] is not None]
            line[name] = f"{sum(asked)}/{len(asked)}"
        controls = [row for row in mine if row["control"]]
        line["false_alarms"] = f"{sum(row['false_alarm'] for row in controls)}/{len(controls)}"
        found[tool] = line
    return found


def _print(rows: list[dict[str, Any]], tools: list[str]) -> None:
    for row in rows:
        missed = [name for name, right in row["fields"].items() if right is False]
        if row["tool"] in ("steadygrad", "guard") and (missed or row["false_alarm"] or row["answer"].error):
            answer, truth, path = row["answer"], row["truth"], row["path"]
            print(f"{row['case']}: {', '.join(missed) or 'false alarm'}  {answer.error}")
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
    totals = _totals(rows)
    columns = [*FIELDS, "false_alarms"]
    print(f"{'tool':26s}" + "".join(f"{name:>13s}" for name in columns))
    for tool in tools:
        print(f"{tool:26s}" + "".join(f"{totals[tool][name]:>13s}" for name in columns))


if __name__ == "__main__":
    raise SystemExit(main())
