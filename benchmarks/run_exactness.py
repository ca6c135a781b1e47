"""One poisoned window in programs that know nothing of steadygrad, under `steady run`: which bits differ at the end.

    python -m benchmarks.run_exactness                 # prints the table
    python -m benchmarks.run_exactness --write         # and writes benchmarks/results/run-exactness.md

Each program trains twice, on data with and without the window, and compares the two results itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "results" / "run-exactness.md"
PROGRAMS = ROOT / "tests" / "unit" / "run" / "programs"
LOOPS = {
    "plain loop": "plain",
    "Accelerate loop": "accelerate",
    "Lightning Trainer": "lightning",
    "transformers Trainer": "transformers",
}
TRL = ("SFTTrainer", "GRPOTrainer")
STEPS, BAD = 6, 2
HEAD = """# One poisoned window under `steady run`

Made by `python -m benchmarks.run_exactness --write`. No line of these programs is there for the guard. A figure is how
many of the weights, moments, buffers, schedules and learning rates differ in any bit from the program's result on the
data without the window.

| program | accumulation | compared | differing | refused |
| --- | --- | --- | --- | --- |
"""


def trl_program(name: str) -> None:
    """A TRL trainer's two runs, in a process that `steady run` started."""
    sys.path.insert(0, str(ROOT / "tests" / "unit" / "trainers"))
    import torch
    from trainer_specimens import differences, state_of, train
    from trl_specimens import ROWS_A_BATCH, batches

    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    parts = ("weights", "moments", "schedule", "rates", "buffers")
    for make, size in ROWS_A_BATCH.items():
        for accumulation in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                rows, without = batches(STEPS, bad=BAD, size=size * accumulation)
                options = {"gradient_accumulation_steps": accumulation, "max_steps": STEPS}
                trainer = make(Path(folder) / "poisoned", rows, **options)
                if type(trainer).__name__ != name:
                    break
                mine = state_of(train(trainer))
                theirs = state_of(train(make(Path(folder) / "plain", without, stop_at=STEPS - 1, **options)))
            told[str(accumulation)] = [each for part in parts for each in differences(mine[part], theirs[part])]
            told["compared"] = sum(len(theirs[part]) for part in parts)
    print("RESULT " + json.dumps(told))


def measure(name: str, command: list[str]) -> list[str]:
    """The rows of one program."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "steadygrad.commands", "run", "--json", "--diagnose", "off", "--run-dir",
             str(Path(folder) / "run"), "--", *command],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode != 0 or not found:
        return [f"| {name} | - | - | did not run: {done.stderr.strip().splitlines()[-3:]} | - |"]
    told = json.loads(found[0].removeprefix("RESULT "))
    summary = json.loads(done.stderr.splitlines()[-1])
    compared = told.pop("compared")
    refused = f"{summary['skipped']} of {summary['steps']} in both"
    return [
        f"| {name} | {accumulation} | {compared} | {len(different)} | {refused} |"
        for accumulation, different in sorted(told.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--trl", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trl:
        trl_program(arguments.trl)
        return
    rows = []
    for name, program in LOOPS.items():
        rows += measure(name, [sys.executable, str(PROGRAMS / f"{program}_program.py")])
        print("\n".join(rows[-2:]), flush=True)
    for name in TRL:
        rows += measure(f"TRL {name}", [sys.executable, "-m", "benchmarks.run_exactness", "--trl", name])
        print("\n".join(rows[-2:]), flush=True)
    if arguments.write:
        TABLE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
