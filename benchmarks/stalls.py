"""The longest pauses of the first steps: what is looked at and copied early must not stop the loop.

    python -m benchmarks.stalls --work gpt_1300m --json benchmarks/results/stalls-....json

One loop after the other over the same batch, each step waited for. A stall is a step's time beyond the median of the
same loop; the first three steps of each, in which memory is asked for and kernels are chosen, are given apart.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from .loops import LOOPS
from .overhead import DEVICE, hardware, synchronise
from .workloads import WORKLOADS

FIRST = 3


def measure(name: str, way: str, steps: int) -> dict[str, Any]:
    loop = LOOPS[way](WORKLOADS[name], DEVICE, False)
    times = []
    for _ in range(steps):
        synchronise()
        start = time.perf_counter()
        loop.step()
        synchronise()
        times.append(time.perf_counter() - start)
    loop.close()
    median = statistics.median(times)
    later = sorted(((taken - median, number) for number, taken in enumerate(times) if number >= FIRST), reverse=True)
    found = {
        "median_ms": median * 1e3,
        "first_ms": [taken * 1e3 for taken in times[:FIRST]],
        "longest_stalls_ms": [{"step": number, "ms": beyond * 1e3} for beyond, number in later[:5]],
        "total_s": sum(times),
    }
    print(f"  {way:14s} median {median * 1e3:7.1f} ms, longest stall {later[0][0] * 1e3:7.1f} ms at step {later[0][1]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", choices=sorted(WORKLOADS), default="gpt_1300m" if DEVICE == "cuda" else "cpu_small")
    parser.add_argument("--ways", nargs="*", choices=sorted(LOOPS), default=["clip", "guard"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    print(hardware())
    results: dict[str, Any] = {"hardware": hardware(), "work": arguments.work, "steps": arguments.steps}
    for way in arguments.ways:
        results[way] = measure(arguments.work, way, arguments.steps)
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
