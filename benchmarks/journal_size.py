"""How large the journal of a long run is, and what `put` costs: 200,000 steps with 300 tensors.

    python -m benchmarks.journal_size [--steps 200000] [--write benchmarks/results/journal-size.md]

The numbers written are made up but move like real ones: losses and norms are noisy float32 values around slow trends,
the learning rate follows a cosine in double precision, every batch has its own key, one step in a thousand is flagged.
Two paces, because they fill the file differently: a fast run puts a thousand rows into every flush, and a run with
steps of a second puts one, which is then merged.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow

from steadygrad.journal import read_steps, steps_table
from steadygrad.journal.run_directory import RunDirectory
from steadygrad.journal.steps.step_writer import StepWriter
from steadygrad.records import StepRecord

TENSORS = 300
NAMES = [f"model.layers.{i // 12}.block.{i % 12}.weight" for i in range(TENSORS)]


def made_up_steps(count: int, *, seconds_a_step: float) -> Iterator[StepRecord]:
    rng = np.random.default_rng(0)
    level = rng.normal(-3.0, 1.5, TENSORS)
    clock = 1.79e9
    for step in range(count):
        level += rng.normal(0.0, 0.003, TENSORS)
        norms = np.exp(level + rng.normal(0.0, 0.15, TENSORS)).astype(np.float32)
        ce = float(np.float32(1.5 + 6.0 * math.exp(-step / 2e4) + rng.normal(0.0, 0.05)))
        kd = float(np.float32(0.3 + rng.normal(0.0, 0.01)))
        clock += seconds_a_step * float(rng.uniform(0.95, 1.05))
        bad = step % 1000 == 999
        yield StepRecord(
            run="made-up",
            step=step,
            time=clock,
            batch_key=f"epoch{step // 50_000}/batch{step % 50_000}",
            loss=math.nan if bad else ce + kd,
            terms={"ce": math.nan if bad else ce, "kd": kd},
            grad_norm=float(np.float32(np.sqrt(np.square(norms.astype(np.float64)).sum()))),
            norms=norms.tolist(),
            lr=3e-4 * (0.5 + 0.5 * math.cos(math.pi * step / count)),
            loss_scale=None,
            applied=not bad,
            flags=("SY101",) if bad else (),
        )


def write_run(root: Path, *, steps: int, rows_a_flush: int, norms_every: int) -> dict[str, float]:
    run = RunDirectory(root)
    writer = StepWriter(run, names=NAMES, norms_every=norms_every, max_queue=1 << 20)
    put_us, drained = [], 0.0
    for record in made_up_steps(steps, seconds_a_step=1.0 / rows_a_flush):
        start = time.perf_counter()
        writer.put(record)
        put_us.append(1e6 * (time.perf_counter() - start))
        if (record.step + 1) % rows_a_flush == 0:
            start = time.perf_counter()
            assert writer.drain(now=True)
            drained += time.perf_counter() - start
    start = time.perf_counter()
    writer.close()
    drained += time.perf_counter() - start
    run.close()
    assert writer.written == steps
    size = sum(path.stat().st_size for path in run.steps.iterdir())
    start = time.perf_counter()
    table = steps_table(root)
    read_s = time.perf_counter() - start
    assert table.num_rows == steps
    assert next(read_steps(root)).step == 0
    return {
        "bytes": size / steps,
        "megabytes": size / 1e6,
        "segments": len(list(run.steps.iterdir())),
        "put": statistics.median(put_us),
        "put99": statistics.quantiles(put_us, n=100)[98],
        "thread": 1e6 * drained / steps,
        "read": read_s,
    }


def processor() -> str:
    """The processor's name as Linux knows it."""
    about = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in about.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    lines = [
        "# Size of the step journal",
        "",
        f"{TENSORS} tensors, 2 loss terms, a key for every batch, one step in 1,000 flagged. Made by",
        "`python -m benchmarks.journal_size`.",
        f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"pyarrow {pyarrow.__version__}, {time.strftime('%Y-%m-%d')}.",
        "",
        "| pace | norms kept | steps | bytes a step | whole run | segments | `put` median (p99) "
        "| journal thread a step | reading it all |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    slow = min(options.steps, 20_000)
    for pace, steps, rows_a_flush, norms_every in (
        ("1,000 steps a second", options.steps, 1000, 10),
        ("1 step a second", slow, 1, 10),
        ("1,000 steps a second", slow, 1000, 1),
    ):
        with tempfile.TemporaryDirectory() as folder:
            got = write_run(Path(folder) / "run", steps=steps, rows_a_flush=rows_a_flush, norms_every=norms_every)
        kept = "every step" if norms_every == 1 else f"every {norms_every}th step"
        lines.append(
            f"| {pace} | {kept} | {steps:,} | {got['bytes']:.0f} | {got['megabytes']:.1f} MB | {got['segments']:.0f} "
            f"| {got['put']:.1f} µs ({got['put99']:.1f}) | {got['thread']:.0f} µs | {got['read']:.2f} s |"
        )
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
