"""Start a new rule: its file, with the next free code of its series, ready to be filled in.

    python tools/add_rule.py SY4 "dead units" "Units that are never active."

SY1 to SY3 are detectors, SY4 vitals, DX causes, RX remedies, PF and CK rules of the check-up. Codes are never reused:
the next one comes after the highest there is. The new file does not pass its tests until specimen, near miss and page
are written and the package runs it, so a rule cannot be begun and forgotten.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / "src" / "steadygrad"
SERIES = re.compile(r"^(SY|DX|RX|PF|CK)([1-9])$")
RULE = re.compile(r'RULE = Rule\(\s*"([A-Z]{2}\d{3})"')
HEADINGS = ("What it sees", "Why it hurts", "Smallest example", "What to do", "Safety", "References")

DETECTOR = """
from {dots}policy import Policy
from {dots}records import Finding, Reading, Severity
from {dots}records.rules import Rule
from {dots}detect.make_finding import finding
from {dots}detect.history import History

RULE = Rule("{code}", "{slug}", "{summary}")


def detect(reading: Reading, history: History, policy: Policy) -> Finding | None:
    raise NotImplementedError("say when {code} is seen: return finding(RULE, reading, Severity.WARNING, ...)")


def SPECIMEN() -> tuple[Reading, History]:
    raise NotImplementedError("a reading that must trigger {code}")


def NEAR_MISS() -> tuple[Reading, History]:
    raise NotImplementedError("a reading that looks like it and must not")
"""

VITAL = """
from collections.abc import Sequence

from {dots}policy import Policy
from {dots}records import Finding, Severity
from {dots}records.rules import Rule
from {dots}detect.sampled.sample_helpers import StepObservation, about

RULE = Rule("{code}", "{slug}", "{summary}")


def judge(samplings: Sequence[StepObservation], policy: Policy) -> Finding | None:
    raise NotImplementedError("say when {code} is seen: return about(RULE, samplings[-1], Severity.WARNING, ...)")


def SPECIMEN() -> list[StepObservation]:
    raise NotImplementedError("samplings that must trigger {code}")


def NEAR_MISS() -> list[StepObservation]:
    raise NotImplementedError("samplings that look like it and must not")
"""

OTHER = """
from {dots}records.rules import Rule

RULE = Rule("{code}", "{slug}", "{summary}")
"""


def package_of(series: str) -> tuple[str, str]:
    """The package of a series and the text a file there starts with."""
    match series[:2]:
        case "SY":
            return ("detect/sampled/rules", VITAL) if series == "SY4" else ("detect/detectors", DETECTOR)
        case "DX":
            return "diagnosis/causes", OTHER
        case "RX":
            return "diagnosis/remedies", OTHER
        case "CK":
            return "checkup/scan/rules", OTHER
        case _:
            return "checkup/rules", OTHER


def family_of(series: str, package: str, home: Path) -> str:
    """The folder below `package` with the newest rule of the series, or the package itself where there is none."""
    found = {
        code: path.parent.relative_to(home).as_posix()
        for path in (home / package).rglob("*.py")
        for code in RULE.findall(path.read_text(encoding="utf-8"))
        if code.startswith(series)
    }
    return found[max(found)] if found else package


def next_code(series: str, home: Path = HOME) -> str:
    """One above the highest code of the series in any package."""
    taken = {code for path in home.rglob("*.py") for code in RULE.findall(path.read_text(encoding="utf-8"))}
    highest = max((int(code[2:]) for code in taken if code.startswith(series)), default=int(series[2]) * 100)
    if highest % 100 == 99:
        raise SystemExit(f"The series {series} is full.")
    return f"{series[:2]}{highest + 1}"


def write_rule(series: str, name: str, summary: str, home: Path = HOME) -> Path:
    """Write the file of a new rule and return its path; an existing file is left alone."""
    if not SERIES.match(series):
        raise SystemExit(f"{series!r} is no series: expected SY1 to SY4, DX1, RX1, PF1 or CK1 and the like.")
    slug = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    summary = summary.strip().rstrip(".") + "."
    if not slug or '"' in summary or "\n" in summary:
        raise SystemExit("A rule needs a name of letters and a summary of one sentence without double quotes.")
    package, body = package_of(series)
    package = family_of(series, package, home)
    code_of = next_code(series, home)
    # Outside of detect/ a file is found by the code in its name.
    path = home / package / (f"{slug}.py" if series.startswith("SY") else f"{code_of.lower()}_{slug}.py")
    there = sorted((home / package).glob(f"*{slug}.py")) if (home / package).is_dir() else []
    if there:
        raise SystemExit(f"{there[0]} is there already.")
    page = "\n\n".join(f"{heading}" for heading in HEADINGS)
    code = body.format(code=code_of, slug=slug, summary=summary, dots="." * (package.count("/") + 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'"""{summary}\n\n{page}\n"""\n\nfrom __future__ import annotations\n{code}', encoding="utf-8")
    return path


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(__doc__)
        return 2
    path = write_rule(*arguments)
    print(f"{path}\nNow write its page, its judge, its specimen and its near miss, and let its package run it.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
