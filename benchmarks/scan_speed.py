"""How fast `steady scan` is: beside plain reading of the same file, and beside the line of torch that people use.

    python -m benchmarks.scan_speed [--gigabytes 4] [--dtype float32] [--write benchmarks/results/scan-....md]

One checkpoint of the size is written with torch.save, read once so that it lies in the page cache, and then three ways
take turns in every round: reading it with one thread into a buffer and doing nothing else; a scan; and
`any(torch.isnan(p).any() for p in torch.load(path).values())`, in a process that has torch imported already. Ratios are
within a round. Reading with as many threads as the scan has is measured as well, to show what the scan itself costs.
At the end the whole command is run once in a process of its own, for its peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from steadygrad.checkup.scan.measure_tensors import usable_threads
from steadygrad.checkup.scan.scan import scan
from steadygrad.records.checks.scan import ScanVerdict

TENSOR_BYTES = 1 << 26
READ_BYTES = 1 << 18  # the fastest size for plain reading on the machines tried: it fits the cache
ONE_LINER = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    found = any(torch.isnan(p).any() for p in torch.load(sys.argv[1])["model"].values())
    print(time.perf_counter() - started, bool(found), flush=True)
"""
WRITER = """
import sys, torch
path, count, values, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4])
torch.manual_seed(0)
one = (torch.randn(values) * 0.02).to(dtype)
torch.save({"model": {f"layers.{i}.weight": one.roll(i).view(1024, -1) for i in range(count)}, "step": 1}, path)
"""


def write_checkpoint(path: Path, num_bytes: int, dtype: str) -> None:
    width = {"float32": 4, "bfloat16": 2, "float16": 2}[dtype]
    command = [
        sys.executable,
        "-c",
        WRITER,
        str(path),
        str(num_bytes // TENSOR_BYTES),
        str(TENSOR_BYTES // width),
        dtype,
    ]
    subprocess.run(command, check=True)


def read_all(path: Path, threads: int) -> None:
    """Every byte of the file, in this many threads that take turns in pieces of 32 MiB."""
    size, piece = path.stat().st_size, 1 << 25
    descriptor = os.open(path, os.O_RDONLY)

    def work(number: int) -> None:
        buffer = np.empty(READ_BYTES, np.uint8)
        for start in range(number * piece, size, threads * piece):
            at, end = start, min(start + piece, size)
            while at < end:
                at += os.preadv(descriptor, [buffer[: end - at]], at)

    helpers = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
    for helper in helpers:
        helper.start()
    work(0)
    for helper in helpers:
        helper.join()
    os.close(descriptor)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def scan_clean(path: Path) -> None:
    report = scan([path], mapped=True)  # as the command does, in a child that may die of it
    assert report.verdict is ScanVerdict.CLEAN, report.files[0].problems
    assert report.files[0].num_tensors > 0


def whole_command(path: Path) -> tuple[float, float]:
    """Seconds and peak mebibytes of `steady scan` as a process of its own."""
    command = [sys.executable, "-m", "steadygrad.commands", "scan", "--json", str(path)]
    code = (
        "import resource, subprocess, sys, time\n"
        "started = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True)
    took, peak = done.stdout.split()
    return float(took), float(peak)


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    threads = usable_threads()
    found: dict[str, list[float]] = {"read": [], "read_threads": [], "scan": [], "one_liner": []}
    command = [sys.executable, "-c", ONE_LINER, str(path), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as torch_process:
        assert torch_process.stdin is not None
        assert torch_process.stdout is not None
        assert torch_process.stdout.readline() == "ready\n"
        read_all(path, 1)
        scan_clean(path)
        for _ in range(rounds):
            found["read"].append(seconds(lambda: read_all(path, 1)))
            found["scan"].append(seconds(lambda: scan_clean(path)))
            found["read_threads"].append(seconds(lambda: read_all(path, threads)))
            torch_process.stdin.write("go\n")
            torch_process.stdin.flush()
            took, bad = torch_process.stdout.readline().split()
            assert bad == "False"
            found["one_liner"].append(float(took))
        torch_process.stdin.close()
    return found


def page(
    size: int, dtype: str, found: dict[str, list[float]], command_s: float, peak: float, load: tuple[float, float]
) -> str:
    def speed(name: str) -> str:
        return f"{size / statistics.median(found[name]) / 1e9:.2f} GB/s"

    def ratio(name: str) -> float:
        return statistics.median(a / b for a, b in zip(found[name], found["scan"], strict=True))

    threads, rounds = usable_threads(), len(found["scan"])
    return "\n".join(
        (
            f"# `steady scan` of a {size / 1e9:.2f} GB checkpoint of {dtype} weights",
            "",
            f"{os.cpu_count()}-core {platform.machine().replace('_', '-')} CPU, Python {platform.python_version()}, "
            f"numpy {np.__version__}, warm page cache, {rounds} rounds of one run, medians. {time.strftime('%F')}.",
            "",
            "| way | speed | the scan is as fast |",
            "|---|---|---|",
            f"| plain reading, one thread | {speed('read')} | {ratio('read'):.2f} times |",
            f"| plain reading, {threads} threads | {speed('read_threads')} | {ratio('read_threads'):.2f} times |",
            f"| torch.load and a loop of isnan().any() | {speed('one_liner')} | {ratio('one_liner'):.1f} times |",
            f"| the scan, {threads} threads | {speed('scan')} | |",
            "",
            f"Load of the machine, in processes that wanted a core: {load[0]:.1f} before and {load[1]:.1f} after.",
            "",
            f"The whole command, start of Python included: {command_s:.2f} s, at most {peak:.0f} MiB of memory.",
            "",
            "The goal was 0.8 of plain reading and 5 times the loop. The loop looks for NaN alone; the scan "
            "also for Inf and the largest magnitude, and in an eighth of the values for zeros and subnormal ones.",
            "",
            "Rounds, in seconds: " + json.dumps({name: [round(s, 3) for s in times] for name, times in found.items()}),
            "",
        )
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast `steady scan` is.")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="Where the file goes for the time of the run.")
    parser.add_argument("--write", type=Path, default=None)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="scan_speed-", dir=options.folder) as folder:
        path = Path(folder) / "checkpoint.pt"
        write_checkpoint(path, int(options.gigabytes * (1 << 30)), options.dtype)
        found = measure(path, options.rounds)
        took, peak = whole_command(path)
        text = page(path.stat().st_size, options.dtype, found, took, peak, (before, os.getloadavg()[0]))
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
