"""Every line of the cost table, at one commit, by one command: `make bench-gpu`.

    python -m benchmarks.all_lines                        # all parts, 30 rounds each; what is there already is kept
    python -m benchmarks.all_lines --parts eager,steady_run --rounds 9
    python -m benchmarks.all_lines --quick                # a CPU's small models, to try the command itself

Each part runs in a process of its own and leaves a JSON file in build/bench-COMMIT, so that a run that was cut short is
taken up where it stopped. The table says the commit, the hardware, and which parts are missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = {
    "plain": "the loop without clipping",
    "clip_item": "clip, and read the norm",
    "detect_anomaly": "detect_anomaly",
    "scaler_fp16": "GradScaler, float16",
}


@dataclass(frozen=True)
class Part:
    """One benchmark with its arguments on a GPU, and with `--quick` on a CPU."""

    module: str
    gpu: tuple[str, ...]
    quick: tuple[str, ...]
    rounds: bool = True


_WAYS = ("--loops", "guard", "guard_folded", "--skip-audits")
PARTS = {
    "eager": Part("overhead", ("--work", "gpt2_124m"), ("--work", "cpu_small", "--fast")),
    "compiled": Part("overhead", ("--work", "gpt2_124m", "--compiled", *_WAYS), ()),
    "large": Part("overhead", ("--work", "gpt_1300m", "--skip-audits"), ()),
    "small": Part("overhead", ("--work", "small_10m", *_WAYS), ()),
    "trainer": Part("trainer_overhead", ("--work", "gpt2_124m"), ("--work", "gpt_5m", "--accumulation", "1")),
    "steady_run": Part("zero_code", ("--work", "gpt2_124m"), ("--work", "cpu_small", "--steps", "4")),
    "diagnosis": Part("diagnosis", ("--work", "gpt2_124m"), ("--work", "cpu_small"), rounds=False),
}


def commit() -> str:
    """The commit that is measured; "-dirty" where files differ from it."""
    run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def measure(name: str, folder: Path, *, rounds: int, quick: bool) -> None:
    """Run one part, unless its numbers are there. A part that fails leaves its last lines instead."""
    part, target = PARTS[name], folder / f"{name}.json"
    arguments = part.quick if quick else part.gpu
    if target.exists() or not arguments:
        return
    command = [sys.executable, "-m", f"benchmarks.{part.module}", *arguments, "--json", str(target)]
    command += ["--rounds", str(rounds)] if part.rounds else []
    began = time.monotonic()
    print(f"{name}: {' '.join(command[2:])}", flush=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(f"{name}: {'done' if not done.returncode else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        (folder / f"{name}.failed").write_text(done.stdout[-2000:] + done.stderr[-4000:], encoding="utf-8")


def ratio(row: dict[str, Any]) -> str:
    """A ratio with its quartiles."""
    low, high = row["quartiles"]
    return f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})"


def lines(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What was measured, a line each."""
    for name in ("eager", "compiled", "large", "small"):
        for work, rows in found.get(name, {}).items():
            if "/" not in work or (name == "compiled" and work.endswith("/eager")):
                continue
            ways = {"guard": "`sg.Guard`", "guard_folded": "`sg.Guard`, clipping folded in", **PEERS}
            for key, row in rows.items():
                if key != "clip" and (key in ways or name == "eager"):
                    yield f"{work}: {ways.get(key, key)}", ratio(row)
        for key, count in found.get(name, {}).get("synchronising_calls", {}).items():
            yield f"host synchronisations a step: {key}", f"{count:.2f}"
        for key, share in found.get(name, {}).get("extra_memory", {}).items():
            if key != "clip":
                yield f"memory at the peak beyond the clip loop: {key}", f"{share:+.2%} of the weights"
    for key, rows in found.get("trainer", {}).items():
        if isinstance(rows, dict):
            yield f"Trainer with `sg.attach`, {key} (to the Trainer alone)", ratio(rows["Trainer, sg.attach"])
    if "steady_run" in found:
        yield "`steady run` (to the program alone)", ratio(found["steady_run"]["wall"])
    for work, rows in found.get("diagnosis", {}).items():
        if isinstance(rows, dict):
            for depth in ("origin", "full"):
                row = rows[depth]
                text = f"{row['steps']:.1f} plain steps"
                peak = row.get("peak_over_training")
                yield f"{work}: diagnosis, {depth}", text + (f", memory x{peak:.2f}" if peak else "")


def table(folder: Path, *, at: str, rounds: int, wanted: list[str]) -> str:
    """The table of all that is in the folder, and what is not."""
    found = {name: json.loads(path.read_text()) for name in PARTS if (path := folder / f"{name}.json").exists()}
    machines = sorted({data["hardware"].removesuffix(", wall time") for data in found.values()})
    missing = [name for name in wanted if name not in found]
    head = [
        "# What it costs",
        f"Commit {at}; {'; '.join(machines) or 'nothing was measured'}; {rounds} rounds; `make bench-gpu`.",
        "Step time divided by that of the same loop with `clip_grad_norm_`, side by side: median and quartiles.",
    ]
    rows = "\n".join(f"| {what} | {value} |" for what, value in lines(found))
    left = [f"Not measured: {', '.join(missing)}."] if missing else []
    return "\n\n".join([*head, f"| what | measured |\n|---|---|\n{rows}", *left]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="small models on a CPU")
    parser.add_argument("--md", type=Path, help="write the table here")
    given = parser.parse_args()
    wanted = given.parts.split(",")
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(f"unknown parts: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    if not given.quick:
        import torch

        if not torch.cuda.is_available():
            parser.error("no CUDA device here; --quick tries the command on a CPU")
    at = commit()
    folder = ROOT / "build" / f"bench-{at}{'-quick' if given.quick else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        measure(name, folder, rounds=given.rounds, quick=given.quick)
    text = table(folder, at=at, rounds=given.rounds, wanted=wanted)
    print(text)
    if given.md is not None:
        given.md.write_text(text, encoding="utf-8")
    return 1 if any((folder / f"{name}.failed").exists() for name in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
