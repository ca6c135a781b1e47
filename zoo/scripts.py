"""Score `steady run` on ordinary training scripts.

    python -m zoo.scripts --scripts DIR --json OUT

DIR holds the scripts and a `truth.json` that says for each file name whether it is sick or healthy and, as far as it is
known, the line, the operation, the cause, the samples and the remedies. Each script runs once as it is and once under
`steady run --json`. It should print FINITE or POISONED for its final weights, and a healthy one their sha256.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .entry_points.steady_run import COMMAND, TookTooLong, last_json_line, run_program
from .entry_points.told import answer_of_incident
from .truth import Answer, bare, case_line

SICK = ("survived", "operation", "line", "cause", "remedy", "samples")
"""What is asked of a sick script."""
HEALTHY = ("survived", "same_weights", "nothing_refused", "nothing_reported")
"""What is asked of a healthy one."""
COUNTED = "called_fine"
"""What must not happen: a script that ended dead or with poisoned weights, and no report of anything."""


@dataclass(slots=True)
class Ending:
    """How one run of a script ended; `weights` is FINITE, POISONED, DEAD or None where the script does not say."""

    code: int | None = None
    weights: str | None = None
    sha256: str | None = None
    tail: str = ""


@dataclass(slots=True)
class Reported:
    """What `steady run` reported of a script."""

    answer: Answer = field(default_factory=Answer)
    samples: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    steps: int = 0
    refused: int = 0
    rolled_back: int = 0
    halted: bool = False

    @property
    def anything(self) -> bool:
        """Whether a reader of the last screen learns that something was wrong, or that nothing was guarded."""
        return bool(self.incidents or self.warnings or self.crashes or self.halted or not self.steps)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zoo.scripts", description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", type=Path, required=True, help="folder of scripts with a truth.json")
    parser.add_argument("--json", type=Path, help="write every ending, report and field here")
    parser.add_argument("--only", default="*", help="glob over file names")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one run of one script")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    if not (options.scripts / "truth.json").is_file():
        parser.error(f"there is no truth.json in {options.scripts}")
    truths = read_truths(options.scripts)
    named = [options.scripts / name for name in truths if (options.scripts / name).match(options.only)]
    missing = [path for path in named if not path.is_file()]
    if missing or not named:
        parser.error(f"there is no script {missing[0] if missing else options.only} in {options.scripts}")
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda path: _one(path, truths[path.name], options.limit), named))
    totals = totals_of(rows)
    if options.json:
        options.json.write_text(json.dumps({"totals": totals, "scripts": rows}, indent=1), encoding="utf-8")
    _print(rows, totals)
    return 0


def read_truths(folder: Path) -> dict[str, dict[str, Any]]:
    """What is known of each script, by file name: an object keyed by name, or a list whose entries carry one."""
    found = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    if isinstance(found, dict) and isinstance(found.get("scripts"), dict | list):
        found = found["scripts"]
    if isinstance(found, list):
        found = {str(entry.get("script") or entry.get("file") or entry.get("name")): entry for entry in found}
    return {name if name.endswith(".py") else f"{name}.py": dict(truth) for name, truth in found.items()}


def _one(path: Path, truth: dict[str, Any], limit: float) -> dict[str, Any]:
    """One script, run plain and guarded, and what is right of what was reported."""
    words = [str(word) for word in truth.get("args", ())]
    plain = _ending([sys.executable, str(path.resolve()), *words], limit)[0]
    with tempfile.TemporaryDirectory(prefix="zoo-script-run-") as folder:
        run_dir = Path(folder) / "run"
        command = [*COMMAND, "--run-dir", str(run_dir), str(path.resolve()), *words]
        guarded, errors = _ending(command, limit)
        reported = report_of(last_json_line(errors))
    row = {
        "script": path.name, "kind": kind_of(truth), "plain": asdict(plain), "guarded": asdict(guarded),
        "reported": asdict(reported), "fields": judge(truth, path, plain, guarded, reported),
        COUNTED: called_fine(guarded, reported),
    }  # fmt: skip
    wrong = [name for name, right in row["fields"].items() if right is False] + ([COUNTED] if row[COUNTED] else [])
    print(f"{path.stem:50s} {', '.join(wrong) or 'right'}", file=sys.stderr, flush=True)
    return row


def _ending(command: list[str], limit: float) -> tuple[Ending, str]:
    """Run a command in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="zoo-script-") as folder:
        try:
            code, output, errors = run_program(command, folder, limit)
        except TookTooLong as late:
            return Ending(tail=str(late)), ""
    verdicts = re.findall(r"\b(FINITE|POISONED|DEAD)\b", output)
    sums = re.findall(r"\b[0-9a-f]{64}\b", output)
    ending = Ending(code, verdicts[-1] if verdicts else None, sums[-1] if sums else None, errors.strip()[-400:])
    return ending, errors


def report_of(told: dict[str, Any] | None) -> Reported:
    """The last screen of `steady run`, and the warnings that the run wrote down."""
    from steadygrad.journal import read_events, read_incidents

    if told is None:
        return Reported()
    runs = told.get("run_dirs") or []
    incidents = sorted((i for run in runs for i in read_incidents(run)), key=lambda incident: incident.first_step)
    events = [event for run in runs for event in read_events(run) if event.kind == "vitals"]
    reported = Reported(
        incidents=[incident.headline or incident.symptom for incident in incidents],
        warnings=[f"{e.data.get('code')} {e.data.get('detail')}" for e in events if e.data.get("severity") != "note"],
        crashes=list(told.get("crashes") or ()),
        notices=list(told.get("notices") or ()),
        steps=int(told.get("steps") or 0) + int(told.get("in_backward") or 0),
        refused=int(told.get("skipped") or 0) - int(told.get("overflows") or 0),
        rolled_back=int(told.get("rolled_back") or 0),
        halted=bool(told.get("halted")),
    )
    best = next((incident for incident in incidents if incident.diagnosis is not None), next(iter(incidents), None))
    if best is not None:
        reported.answer = answer_of_incident(best, best.first_step)
        reported.samples = [str(sample) for sample in (best.diagnosis.sample_ids if best.diagnosis else ()) or ()]
    return reported


def kind_of(truth: dict[str, Any]) -> str:
    """Sick unless the truth says healthy."""
    return "healthy" if str(truth.get("kind", "sick")).lower() in ("healthy", "control", "none") else "sick"


def judge(
    truth: dict[str, Any], path: Path, plain: Ending, guarded: Ending, reported: Reported
) -> dict[str, bool | None]:
    """True, False or None (not known, so not asked) for every field of this kind of script."""
    survived = _survived(plain, guarded)
    if kind_of(truth) == "healthy":
        same = plain.sha256 == guarded.sha256 if plain.sha256 is not None else None
        refused = reported.refused or reported.rolled_back or reported.halted
        return {
            "survived": survived,
            "same_weights": same,
            "nothing_refused": not refused,
            "nothing_reported": not (reported.incidents or reported.warnings or reported.crashes),
        }
    answer = reported.answer
    lines = [int(line) for line in _listed(truth.get("line", truth.get("lines")))] or marked_lines(path, truth)
    operations = {bare(str(name)) for name in _listed(truth.get("operation", truth.get("op")))}
    causes = set(_listed(truth.get("cause")))
    works = set(_listed(truth.get("remedy", truth.get("remedies"))))
    samples = truth.get("samples")
    expected = None if samples is None else {str(sample) for sample in _listed(samples)}
    proved = set(answer.verified)
    return {
        "survived": survived,
        "operation": bare(answer.op) in operations if operations else None,
        "line": case_line(answer, path) in lines if lines else None,
        "cause": answer.cause in causes if causes else None,
        "remedy": bool(proved & works if works else proved) if truth.get("remedy", True) is not None else None,
        "samples": set(reported.samples) == expected if expected is not None else None,
    }


def _survived(plain: Ending, guarded: Ending) -> bool | None:
    """Whether the program ended as without the tool or better, with finite weights."""
    if guarded.code is None or guarded.weights in ("POISONED", "DEAD"):
        return False
    if guarded.code not in (0, plain.code):
        return False
    return True if guarded.weights == "FINITE" else None


def called_fine(guarded: Ending, reported: Reported) -> bool:
    """Whether the program ended dead or poisoned and the last screen reports nothing."""
    return guarded.weights in ("POISONED", "DEAD") and not reported.anything


def marked_lines(path: Path, truth: dict[str, Any]) -> list[int]:
    """The lines that end with the truth's marker, if it has one."""
    marker = truth.get("line_marker")
    if not marker:
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.rstrip().endswith(marker)]


def _listed(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def totals_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Right answers of those asked, for the sick and the healthy scripts."""
    totals: dict[str, dict[str, str]] = {}
    for kind, names in (("sick", SICK), ("healthy", HEALTHY)):
        mine = [row for row in rows if row["kind"] == kind]
        asked = {name: [r["fields"][name] for r in mine if r["fields"][name] is not None] for name in names}
        totals[kind] = {name: f"{sum(values)}/{len(values)}" for name, values in asked.items()}
        totals[kind][COUNTED] = f"{sum(row[COUNTED] for row in mine)}/{len(mine)}"
    return totals


def _print(rows: list[dict[str, Any]], totals: dict[str, dict[str, str]]) -> None:
    for row in rows:
        wrong = [name for name, right in row["fields"].items() if right is False] + ([COUNTED] if row[COUNTED] else [])
        if wrong:
            answer, guarded = row["reported"]["answer"], row["guarded"]
            print(f"{row['script']}: {', '.join(wrong)}")
            print(f"    ended  {guarded['code']} {guarded['weights']} (plain {row['plain']['code']})")
            print(f"    said   {answer['op']} {answer['lines'][:1]} {answer['cause']} {answer['verified']}")
            for sentence in [*row["reported"]["incidents"], *row["reported"]["warnings"]][:3]:
                print(f"           {sentence}")
    for kind, line in totals.items():
        print(f"{kind:10s}" + "  ".join(f"{name} {value}" for name, value in line.items()))


if __name__ == "__main__":
    raise SystemExit(main())
