"""Score the silent errors: `python -m zoo.silent [--cases DIR] [--entry-points guard,attach,run] [--json FILE]`.

A failure counts as named if its cause is the cause of an incident, or the slug of a warning. A healthy look-alike must
have neither. Guard runs the loss function itself, so errors of a loop's own step are left to the other two.
With `--cases zoo/silent/programs` whole scripts are scored, at `attach` and `run`; `SEED` and `FIX=1` choose their seed
and the corrected program.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..truth import causes_of
from .child import HOME, load

ENTRY_POINTS = ("guard", "attach", "run")
_LIMIT = 300


def answer(path: Path, entry: str) -> dict[str, Any]:
    """What is said of one case at one entry point."""
    if _is_script(path):
        child, plain = [sys.executable, str(path.resolve())], []
        attached = child
    else:
        child, plain = [sys.executable, "-m", "zoo.silent.child", str(path.resolve())], ["plain"]
        attached = [*child, entry]
    if entry != "run":
        done = _run(attached, ATTACH="1")
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        return json.loads(lines[-1][7:]) if lines else {"error": done.stderr[-400:], "named": [], "warned": []}
    with tempfile.TemporaryDirectory() as folder:
        steady = [sys.executable, "-m", "steadygrad.commands", "run", "--run-dir", folder]
        done = _run([*steady, *child[1:], *plain])
        return {**_read(Path(folder)), **({"error": done.stderr[-400:]} if done.returncode else {})}


def _is_script(path: Path) -> bool:
    """Whether it is a whole program, and no case of parts that a loop is made from."""
    return "\ndef make(" not in path.read_text()


def truth_of(path: Path) -> dict[str, Any]:
    """A script must not be run to know its truth."""
    if not _is_script(path):
        return dict(load(path).TRUTH)
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.targets[0]) == "TRUTH"
        ):
            return {each.arg: ast.literal_eval(each.value) for each in node.value.keywords if each.arg}
    raise ValueError(f"{path} has no TRUTH")


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    root = HOME.parents[1]
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, env=environment, cwd=root)


def _read(run: Path) -> dict[str, Any]:
    named, warned = [], []
    for file in sorted(run.rglob("incident*.json")):
        entry = json.loads(file.read_text())
        entry = entry.get("incident", entry)
        cause = ((entry.get("diagnosis") or {}).get("cause") or {}).get("slug")
        if cause:
            named.append((entry["first_step"], cause))
    for file in run.rglob("events.jsonl"):
        for line in file.read_text(errors="replace").splitlines():
            event = json.loads(line) if '"vitals"' in line else {}
            if event.get("kind") == "vitals":
                warned.append((event["data"]["step"], event["data"]["slug"]))
    return {"named": named, "warned": warned}


def score(path: Path, entries: list[str]) -> dict[str, Any]:
    """One case at all entry points, beside its truth."""
    truth = truth_of(path)
    row: dict[str, Any] = {"case": truth["id"], "cause": truth["cause"], "knowable_at": truth["knowable_at"]}
    for entry in entries:
        said = answer(path, entry)
        found = [(step, cause) for step, cause in [*said["named"], *said["warned"]]]
        right = [step for step, cause in found if cause in causes_of(truth)]
        row[entry] = {
            "named": bool(right) if truth["cause"] != "none" else not found,
            "step": min(right, default=None),
            "said": sorted({cause for _, cause in found}),
            **{key: said[key] for key in ("error", "faults") if said.get(key)},
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.silent", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, default=HOME / "cases")
    parser.add_argument("--entry-points", default=",".join(ENTRY_POINTS))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    entries = options.entry_points.split(",")
    paths = [path for path in sorted(options.cases.glob("[0-9]*.py")) if options.only in path.stem]
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda path: score(path, entries), paths):
            rows.append(row)
            marks = "  ".join(f"{entry} {'yes' if row[entry]['named'] else 'NO '}" for entry in entries)
            print(
                f"{row['case']:55} {row['cause']:28} {marks}  {[row[entry]['said'] for entry in entries]}", flush=True
            )
    for entry in (*entries, "best"):
        print(f"{entry:8} {summary(rows, entries if entry == 'best' else [entry])}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def summary(rows: list[dict[str, Any]], entries: list[str]) -> str:
    """How many failures are named at one of these entry points, and how many healthy runs are left alone at all."""
    failures = [row for row in rows if row["cause"] != "none"]
    healthy = [row for row in rows if row["cause"] == "none"]
    named = sum(any(row[entry]["named"] for entry in entries) for row in failures)
    alone = sum(all(row[entry]["named"] for entry in entries) for row in healthy)
    return f"named {named} of {len(failures)}; healthy runs left alone {alone} of {len(healthy)}"


if __name__ == "__main__":
    main()
