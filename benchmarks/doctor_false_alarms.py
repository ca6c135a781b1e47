"""Run the doctor over folders of other people's training code and count what it says, for somebody to read it all.

    python -m benchmarks.doctor_false_alarms FOLDER... [--show]

A script counts if it calls backward or a trainer. Which findings are false is a person's judgement: the counts and
that judgement are in results/doctor-false-alarms.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from steadygrad.checkup.doctor import judge
from steadygrad.checkup.inputs.input_files import read_target, targets
from steadygrad.checkup.inputs.run_settings import Settings
from steadygrad.checkup.inputs.script import Script
from steadygrad.checkup.rule_selection import Selection
from steadygrad.records.errors import UsageError


def trains(script: Script) -> bool:
    """Whether a file is a training script rather than a library."""
    return bool(script.called & {"backward", "fit"}) or any(word.endswith("Trainer") for word in script.called)


def things(folder: Path) -> Iterator[Script | Settings]:
    """Every training script and every configuration that says whose it is."""
    for path in targets([folder]):
        try:
            thing = read_target(path)
        except UsageError:
            continue
        if trains(thing) if isinstance(thing, Script) else thing.kind != "unknown":
            yield thing


def main(words: list[str]) -> int:
    folders = [Path(word) for word in words if not word.startswith("--")]
    if not folders:
        print(__doc__)
        return 2
    for folder in folders:
        counts: Counter[str] = Counter()
        found: Counter[str] = Counter()
        for thing in things(folder):
            counts["scripts" if isinstance(thing, Script) else "configurations"] += 1
            counts["lines"] += len(thing.lines) if isinstance(thing, Script) else 0
            for advice in judge(thing, Selection()):
                found[f"{advice.code} {advice.level}"] += 1
                if "--show" in words:
                    print(f"{advice.path}:{advice.line} {advice.level} {advice.code} {advice.detail}")
                    print(f"    {advice.code_line.strip()}")
        print(folder, dict(counts), dict(sorted(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
