"""Another project's test suite, plain and under `steady run`: the same tests must pass, with nothing of ours on stdout.

    python tests/clients/compare.py skorch --checkout /path/to/skorch --write
    python tests/clients/compare.py mine --checkout /path/to/project tests/test_train.py -- -k "not network"

It fetches nothing: README.md beside it says how to get the checkouts. The suite runs three times, each in a process of
its own: plain, plain again (a test that differs between these two is listed apart) and under `steady run`. Exit code 0
if the outcomes, the exit code and what is on stdout are the same with and without `steady run`, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UNFINISHED = "not finished"
GOOD = ("passed", "skipped", "xfailed")
# A number, an address or a word for one: what may differ between two runs of the same test.
NUMBER = r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?|\b(nan|inf)\b"
# Left out: colours, how long pytest took where that is more than a minute, and how long a line drawn under a table or a
# full progress bar is: a bar ends where the speed behind it begins.
LEFT_OUT = re.compile(r"\x1b\[[\d;]*m|\(\d+:\d\d:\d\d\)|(?<=---)-+|(?<=━━━)━+")
VARIABLE = re.compile(NUMBER + r"|pytest-of-\S+|tmp\w{6,}", re.IGNORECASE)
# Where Python and the packages are installed.
INSTALLED = re.compile(r"/[^\s'\"`:]*?/(site-packages|lib/python3\.\d+)/(site-packages/)?")
# Names that only we print.
OURS = re.compile(r"steadygrad|steady run|TrainingHalted", re.IGNORECASE)
HEAD = """# Public test suites under `steady run`

Made by `python tests/clients/compare.py SUITE --checkout FOLDER --write`, once for each suite. Each suite runs plain,
plain again and under `steady run` with default settings. *Same* counts the tests with the same outcome in both, *worse*
those that passed or were skipped plain and did not under `steady run`; tests that differ between the two plain runs are
*unstable* and are not counted. *Stdout* counts lines that appear on standard output only under `steady run`. CPU
seconds are of the second plain run and of the one under `steady run`, with all their processes.

"""


TABLE_HEAD = ("| | plain | plain again | under `steady run` |", "|---|---|---|---|")
SUMMARY_HEAD = (
    "| suite | version | passed plain | passed in both | same | worse | unstable | stdout | identical "
    "| CPU seconds plain | under `steady run` |"
)


@dataclass(slots=True)
class Test:
    """What one run saw of one test."""

    outcome: str
    error: str | None = None
    error_text: str | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Run:
    """One run of a suite: what became of each test, and what the process printed."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float = 0.0
    tests: dict[str, Test] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Suite:
    """Which tests of which project."""

    name: str
    version: str
    tests: tuple[str, ...]
    args: tuple[str, ...] = ()


def run_suite(suite: Suite, checkout: Path, python: str, *, under: Sequence[str] = (), limit_s: float = 3600) -> Run:
    """Run the suite in a process of its own, behind the words of `under` (none: plain)."""
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        lines = Path(folder) / "outcomes.jsonl"
        command = [*under, python, "-m", "pytest", *_pytest_arguments(suite, lines)]
        started = os.times()
        child = subprocess.Popen(
            command, cwd=checkout, env=_environment(), text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        ended = os.times()
        cpu = sum(ended[2:4]) - sum(started[2:4])
        run = Run(child.returncode, out, err, seconds=ended.elapsed - started.elapsed, cpu_seconds=cpu)
        _read_outcomes(run, lines)
    return run


def _pytest_arguments(suite: Suite, lines: Path) -> list[str]:
    fixed = ["-q", "--no-header", "--no-summary", "--tb=short", "-o", "addopts=", "--color=no"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "client_outcomes", "--outcomes-to", str(lines)]
    return [*fixed, *plugins, *suite.args, *suite.tests]


def _environment() -> dict[str, str]:
    """The same for all runs: our sources and the plugin are importable, one thread, no network for models, and sets in
    the same order."""
    paths = [str(ROOT / "src"), str(HERE / "plugin"), os.environ.get("CLIENTS_PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **ours, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


def _read_outcomes(run: Run, lines: Path) -> None:
    if not lines.exists():
        last = (run.stderr.strip() or run.stdout.strip() or "no output").rsplit("\n", 1)[-1]
        run.problems.append(f"pytest reported no test (exit code {run.code}): {last}")
        return
    started: str | None = None
    for text in lines.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        match line["kind"]:
            case "start":
                started = line["test"]
                run.tests[started] = Test(outcome=UNFINISHED, error=f"the process ended with {run.code}")
            case "phase":
                _add_phase(run.tests.setdefault(line["test"], Test(outcome=UNFINISHED)), line)
            case "collect":
                run.tests[line["test"]] = Test("not collected", line["error"], line["error_text"])
            case "warning":
                run.warnings[f"{line['category']}: {_constant(line['message'])}"] += 1
            case "internal":
                run.problems.append(f"pytest failed: {line['error']}")
    if run.code < 0 or (started is not None and run.tests[started].outcome == UNFINISHED):
        run.problems.append(f"the process ended with {run.code} in {started}")


def _add_phase(test: Test, line: dict[str, Any]) -> None:
    """Setup, call and teardown make one outcome, known after the teardown; of repetitions the last one counts."""
    if line["phase"] == "setup":
        test.outcome = UNFINISHED
    if line["outcome"] != "passed" and test.outcome == UNFINISHED:
        test.outcome = "error" if line["outcome"] == "failed" and line["phase"] != "call" else line["outcome"]
        test.error, test.error_text = line["error"], line["error_text"]
    if line["phase"] == "teardown" and test.outcome == UNFINISHED:
        test.outcome, test.error, test.error_text = "passed", None, None
    test.stdout, test.stderr = line["stdout"] or test.stdout, line["stderr"] or test.stderr
    test.seconds += line["seconds"]


def compare(plain: Run, again: Run, guarded: Run) -> dict[str, Any]:
    """What differs between the plain runs and the one under `steady run`."""
    names = list(dict.fromkeys([*plain.tests, *again.tests, *guarded.tests]))
    unstable = [name for name in names if _outcome(plain, name) != _outcome(again, name)]
    stable = [name for name in names if name not in set(unstable)]
    different = [name for name in stable if _outcome(plain, name) != _outcome(guarded, name)]
    same = [name for name in stable if name not in set(different)]
    worse = [name for name in different if _outcome(plain, name) in GOOD]
    stdout = _added_lines(same, "stdout", plain, again, guarded)
    process = _added_process_lines(plain, again, guarded, outcomes_differ=bool(different or unstable))
    codes_differ = guarded.code not in (plain.code, again.code)
    return {
        "identical": not (different or stdout or process or codes_differ or guarded.problems),
        "outcomes": {
            "plain": _counts(plain),
            "plain again": _counts(again),
            "steady run": _counts(guarded),
        },
        "exit_codes": [plain.code, again.code, guarded.code],
        "seconds": [round(run.seconds, 1) for run in (plain, again, guarded)],
        "cpu_seconds": [round(run.cpu_seconds, 1) for run in (plain, again, guarded) if run.cpu_seconds],
        "same": len(same),
        "passed_in_both": sum(_outcome(plain, name) == "passed" for name in same),
        "passed_plain": sum(_outcome(plain, name) == "passed" for name in stable),
        "worse": len(worse),
        "different": [_difference(name, plain, guarded) for name in different],
        "unstable": [_instability(name, plain, again, guarded) for name in unstable],
        "stdout": stdout,
        "process_stdout": process,
        "stderr": _added_lines(same, "stderr", plain, again, guarded),
        "warnings": sorted(set(guarded.warnings) - set(plain.warnings) - set(again.warnings)),
        "problems": guarded.problems,
        "slower": _slowest(same, plain, again, guarded),
        "steady_run": _own_account(guarded),
    }


def _own_account(guarded: Run) -> dict[str, Any]:
    """What `steady run --json` said at the end, without the details of each incident; empty if it said nothing."""
    try:
        told = json.loads(guarded.stderr.strip().rsplit("\n", 1)[-1])
    except ValueError:
        return {}
    if not isinstance(told, dict):
        return {}
    kept = ("steps", "applied", "skipped", "overflows", "rolled_back", "held", "halted", "crashes", "notices", "faults")
    short = [
        {key: item.get(key) for key in ("symptom", "headline", "first_step")} for item in told.get("incidents", ())
    ]
    return {key: told[key] for key in kept if key in told} | {"incidents": len(short), "first_incidents": short[:20]}


def _outcome(run: Run, name: str) -> str:
    return run.tests[name].outcome if name in run.tests else "not run"


def _counts(run: Run) -> dict[str, int]:
    return dict(sorted(Counter(test.outcome for test in run.tests.values()).items()))


def _difference(name: str, before: Run, after: Run) -> dict[str, Any]:
    test = after.tests.get(name) or Test("not run")
    if test.error is None and name in before.tests:
        test = Test(test.outcome, before.tests[name].error)
    return {
        "test": name,
        "plain": _outcome(before, name),
        "steady_run": _outcome(after, name),
        "error": (test.error or "")[:400],
    }


def _instability(name: str, plain: Run, again: Run, guarded: Run) -> dict[str, Any]:
    found = _difference(name, plain, again)
    return found | {"plain": f"{found['plain']}, then {found['steady_run']}", "steady_run": _outcome(guarded, name)}


def _constant(text: str) -> str:
    """The text with what may differ replaced; how wide a column is follows the numbers in it."""
    return " ".join(VARIABLE.sub("#", LEFT_OUT.sub("", text)).split())


def _lines(text: str) -> dict[str, str]:
    return {_constant(line): line for line in re.split(r"[\r\n]+", text) if line.strip()}


def _added_lines(names: list[str], stream: str, plain: Run, again: Run, guarded: Run) -> list[dict[str, Any]]:
    """Lines that a test printed only under `steady run`; numbers and addresses are not compared."""
    found = []
    for name in names:
        known = set(_lines(getattr(plain.tests[name], stream))) | set(_lines(getattr(again.tests[name], stream)))
        new = [line for key, line in _lines(getattr(guarded.tests[name], stream)).items() if key not in known]
        if new:
            found.append({"test": name, "lines": [line[:300] for line in new[:5]], "count": len(new)})
    return found


def _added_process_lines(plain: Run, again: Run, guarded: Run, *, outcomes_differ: bool) -> list[str]:
    """Lines on pytest's own standard output. Most follow the outcomes: if these differ, only lines of ours count."""
    known = set(_lines(plain.stdout)) | set(_lines(again.stdout))
    new = [line for key, line in _lines(guarded.stdout).items() if key not in known]
    return [line[:300] for line in new if OURS.search(line) or not outcomes_differ]


def _slowest(names: list[str], plain: Run, again: Run, guarded: Run) -> list[dict[str, Any]]:
    """The five tests that lost the most time."""

    def lost(name: str) -> float:
        return guarded.tests[name].seconds - max(plain.tests[name].seconds, again.tests[name].seconds)

    def row(name: str) -> dict[str, Any]:
        seconds = [round(run.tests[name].seconds, 2) for run in (plain, guarded)]
        return {"test": name, "plain_s": seconds[0], "steady_run_s": seconds[1]}

    return [row(name) for name in sorted(names, key=lost, reverse=True)[:5]]


def without_paths(value: Any, folders: dict[str, str]) -> Any:
    """The same structure without this machine's folders."""
    if isinstance(value, str):
        for folder, name in folders.items():
            value = value.replace(folder, name)
        return INSTALLED.sub("<python>/", value)
    if isinstance(value, dict):
        return {key: without_paths(item, folders) for key, item in value.items()}
    return [without_paths(item, folders) for item in value] if isinstance(value, list) else value


def describe(result: dict[str, Any]) -> str:
    """The result of one suite as text: the table, then what differs."""
    rows = [f"## {result['suite']} {result['version']}", "", *TABLE_HEAD]
    outcomes = result["outcomes"]
    for kind in sorted({kind for counts in outcomes.values() for kind in counts}):
        rows.append("| " + " | ".join([kind, *(str(outcomes[run].get(kind, 0)) for run in outcomes)]) + " |")
    rows.append("| exit code | " + " | ".join(map(str, result["exit_codes"])) + " |")
    rows.append("| seconds | " + " | ".join(map(str, result["seconds"])) + " |")
    if cpu := _cpu_seconds(result):
        rows.append("| CPU seconds | " + " | ".join(map(str, cpu)) + " |")
    rows += ["", "Identical." if result["identical"] else f"Different: {_reasons(result)}."]
    rows += _classes(result["different"])
    rows += _listing("Tests that differ", [_one(item) for item in result["different"]])
    rows += _listing("Unstable: different in the two plain runs", [_one(item) for item in result["unstable"]])
    for stream in ("stdout", "stderr"):
        found = [f"`{i['test']}`: {' / '.join(f'`{line}`' for line in i['lines'][:2])}" for i in result[stream]]
        rows += _listing(f"Lines on {stream} only under `steady run`", found)
    rows += _listing("Lines of the process on stdout only under it", [f"`{line}`" for line in result["process_stdout"]])
    rows += _listing("Warnings only under it", [f"`{line}`" for line in result["warnings"]])
    rows += _listing("Problems", result["problems"])
    own = {key: value for key, value in result["steady_run"].items() if isinstance(value, int)}
    rows += _listing("`steady run` counted", [", ".join(f"{key} {value}" for key, value in own.items())] if own else [])
    return "\n".join(rows) + "\n"


def _cpu_seconds(result: dict[str, Any]) -> list[float]:
    """Of the three runs; empty where they were not measured in all of them, as in older results."""
    found = result.get("cpu_seconds", [])
    return found if len(found) == 3 else []


def _reasons(result: dict[str, Any]) -> str:
    parts = {
        f"{len(result['different'])} tests ({result['worse']} worse)": result["different"],
        f"stdout of {len(result['stdout'])} tests": result["stdout"],
        "stdout of the process": result["process_stdout"],
        "exit code": result["exit_codes"][2] not in result["exit_codes"][:2],
        "problems": result["problems"],
    }
    return ", ".join(text for text, present in parts.items() if present)


def _classes(different: list[dict[str, Any]]) -> list[str]:
    """How often each kind of error came, the commonest first."""
    kinds = Counter(_constant(item["error"])[:160] for item in different)
    if not kinds:
        return []
    return ["", "| first line of the error | tests |", "|---|---|"] + [
        f"| `{error.replace('|', '/') or '(none)'}` | {count} |" for error, count in kinds.most_common(15)
    ]


def _one(item: dict[str, Any]) -> str:
    error = f": `{item['error'][:200]}`" if item["error"] else ""
    return f"`{item['test']}`: {item['plain']} -> {item['steady_run']}{error}"


def _listing(title: str, lines: list[str], most: int = 25) -> list[str]:
    if not lines:
        return []
    more = [f"- and {len(lines) - most} more, in the JSON file"] if len(lines) > most else []
    return ["", f"{title}:", "", *(f"- {line}" for line in lines[:most]), *more]


def summary(results: Sequence[dict[str, Any]]) -> str:
    """The page: one row for each suite, then each suite."""
    rows = [SUMMARY_HEAD]
    rows.append("|" + "---|" * 11)
    for result in results:
        printed = len(result["stdout"]) + len(result["process_stdout"])
        cpu = _cpu_seconds(result) or ["", "", ""]
        rows.append(
            f"| {result['suite']} | {result['version']} | {result['passed_plain']} | {result['passed_in_both']} "
            f"| {result['same']} | {result['worse']} | {len(result['unstable'])} | {printed} "
            f"| {'yes' if result['identical'] else 'no'} | {cpu[1]} | {cpu[2]} |"
        )
    made = sorted({f"{result['commit']}, {result['python']}, torch {result['torch']}" for result in results})
    return HEAD + "\n".join(rows) + f"\n\nMeasured at {'; '.join(made)}.\n\n" + "\n".join(map(describe, results))


def write(result: dict[str, Any], results: Path) -> None:
    """The suite's JSON, and the page over all suites that have one."""
    (results / f"clients-{result['suite']}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    known = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("clients-*.json"))]
    (results / "clients-suites.md").write_text(summary(known).rstrip() + "\n", encoding="utf-8")


def known_suites() -> dict[str, Suite]:
    """The suites of suites.toml."""
    tables = tomllib.loads((HERE / "suites.toml").read_text(encoding="utf-8"))
    return {
        name: Suite(name, table["version"], tuple(table["tests"]), tuple(table.get("args", ())))
        for name, table in tables.items()
    }


def _versions(python: str) -> dict[str, str]:
    code = "import platform, importlib.metadata as m; print(platform.python_version(), m.version('torch'))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, env=_environment(), check=False)
    words = asked.stdout.split() or [platform.python_version(), "not installed"]
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return {"python": f"Python {words[0]}", "torch": words[-1], "commit": commit}


def keep(folder: Path, plain: Run, again: Run, guarded: Run) -> None:
    """Full tracebacks and output of the run under `steady run`, and the plain runs for `--reuse-plain`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: test.error_text for name, test in guarded.tests.items() if test.error_text}
    (folder / "errors.json").write_text(json.dumps(texts, indent=1), encoding="utf-8")
    (folder / "stdout.txt").write_text(guarded.stdout, encoding="utf-8")
    (folder / "stderr.txt").write_text(guarded.stderr, encoding="utf-8")
    # asdict() of Python 3.11 copies a Counter into one of its items, so the warnings are added as they are.
    kept = [asdict(replace(run, warnings=Counter())) | {"warnings": dict(run.warnings)} for run in (plain, again)]
    (folder / "plain.json").write_text(json.dumps(kept), encoding="utf-8")


def _kept_runs(folder: Path | None) -> list[Run]:
    path = folder / "plain.json" if folder is not None else None
    if path is None or not path.exists():
        return []
    runs = [Run(**data) for data in json.loads(path.read_text(encoding="utf-8"))]
    for run in runs:
        run.tests = {name: Test(**data) for name, data in run.tests.items()}  # type: ignore[arg-type]
        run.warnings = Counter(run.warnings)
    return runs


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. What stands behind `--` goes to pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="a name in suites.toml, or any name together with test paths")
    parser.add_argument("tests", nargs="*", help="test paths inside the checkout (default: those of suites.toml)")
    parser.add_argument("--checkout", type=Path, required=True, help="the project's checkout")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the project's requirements")
    parser.add_argument("--under", default=None, help="command to run the suite under (default: steady run)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which a run is ended")
    parser.add_argument("--keep", type=Path, default=None, help="folder for full tracebacks and output")
    parser.add_argument("--reuse-plain", action="store_true", help="take the plain runs that --keep kept last time")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/clients-*")
    ours, theirs = list(sys.argv[1:] if words is None else words), []
    if "--" in ours:
        ours, theirs = ours[: ours.index("--")], ours[ours.index("--") + 1 :]
    parsed = parser.parse_args(ours)
    parsed.pytest_args = tuple(theirs)
    return parsed


def main(words: Sequence[str] | None = None) -> int:
    asked = arguments(words)
    known = known_suites().get(asked.suite, Suite(asked.suite, "", ()))
    suite = Suite(asked.suite, known.version, tuple(asked.tests) or known.tests, asked.pytest_args or known.args)
    if not suite.tests:
        print(f"{asked.suite} is not in suites.toml: name its test paths.", file=sys.stderr)
        return 2
    checkout = asked.checkout.resolve()
    with tempfile.TemporaryDirectory(prefix="clients-run-") as runs:
        run_dir = asked.keep / "run" if asked.keep else Path(runs) / "run"
        default = [asked.python, "-m", "steadygrad.commands", "run", "--json", "--run-dir", str(run_dir), "--"]
        under = shlex.split(asked.under) if asked.under else default

        def run(title: str, *words_before: str) -> Run:
            made = run_suite(suite, checkout, asked.python, under=words_before, limit_s=asked.limit)
            print(f"{suite.name}, {title}: {_counts(made)} in {made.seconds:.0f} s", file=sys.stderr, flush=True)
            return made

        kept = _kept_runs(asked.keep) if asked.reuse_plain else []
        plain, again = kept or [run("plain"), run("plain again")]
        guarded = run("steady run", *under)
    result = {"suite": suite.name, "version": suite.version, **_versions(asked.python)}
    result |= compare(plain, again, guarded)
    venvs = dict.fromkeys([str(Path(asked.python).parent.parent), sys.prefix], "<venv>")
    folders = {str(run_dir): "<run>", str(checkout): "<checkout>", runs: "<tmp>", str(ROOT): "<steadygrad>", **venvs}
    result = without_paths(result, folders)
    print(describe(result))
    if asked.keep:
        keep(asked.keep, plain, again, guarded)
    if asked.write:
        write(result, RESULTS)
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
