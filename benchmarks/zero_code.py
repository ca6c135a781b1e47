"""What `steady run` costs: a plain loop under it beside the same loop alone.

    python -m benchmarks.zero_code --work cpu_small --json benchmarks/results/zero-code-....json

Two processes run the same loop, one of them started as `steady run` starts a program, and take turns: while one runs
its steps the other waits. The figure is the median over rounds of guarded time divided by plain time in the same
round; every other round begins with the other one. Processor time is given beside wall time, because on a machine
that others use too it is the one that repeats; it counts all threads, the journal's among them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from steadygrad.integrations.zero_code.launch.run_options import RunOptions


def worker(name: str) -> None:
    """Runs as many steps as each line on standard input says, and answers with milliseconds a step: of the clock, and
    of the processor over all threads."""
    import torch

    from .overhead import DEVICE, synchronise
    from .workloads import WORKLOADS, build, loss_of

    if DEVICE == "cpu":
        torch.set_num_threads(1)
    model, optimizer, ids = build(WORKLOADS[name], DEVICE)
    data = torch.utils.data.TensorDataset(ids.cpu().repeat(64, 1))
    loader = torch.utils.data.DataLoader(data, len(ids))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    batches = iter(loader)
    for line in sys.stdin:
        synchronise()
        start, worked = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            try:
                (batch,) = next(batches)
            except StopIteration:
                batches = iter(loader)
                (batch,) = next(batches)
            optimizer.zero_grad()
            loss_of(model, batch.to(DEVICE)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        synchronise()
        passed, worked = time.perf_counter() - start, time.process_time() - worked
        print(json.dumps([passed / int(line) * 1e3, worked / int(line) * 1e3]), flush=True)


def start(name: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.zero_code", "--work", name, "--worker"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def timed(process: subprocess.Popen[str], steps: int) -> tuple[float, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    passed, worked = json.loads(process.stdout.readline())
    return passed, worked


def measure(name: str, *, rounds: int, steps: int, warm_up: int) -> dict[str, Any]:
    from .overhead import hardware

    with tempfile.TemporaryDirectory() as folder:
        settings = RunOptions(run_dir=str(Path(folder) / "run"))
        processes = {"plain": start(name, dict(os.environ)), "guarded": start(name, settings.environment(os.environ))}
        times: dict[str, list[tuple[float, float]]] = {key: [] for key in processes}
        for process in processes.values():
            timed(process, warm_up)
        for number in range(rounds):
            order = list(processes) if number % 2 else list(reversed(processes))
            for key in order:
                times[key].append(timed(processes[key], steps))
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        assert (Path(folder) / "run" / "run.json").is_file(), "the guarded loop was not guarded"
    result: dict[str, Any] = {
        "hardware": hardware(),
        "work": name,
        "rounds": rounds,
        "steps": steps,
        "warm_up": warm_up,
    }
    for place, clock in enumerate(("wall", "processor")):
        plain, guarded = ([each[place] for each in times[key]] for key in ("plain", "guarded"))
        low, ratio, high = statistics.quantiles([g / p for g, p in zip(guarded, plain, strict=True)], n=4)
        result[clock] = {
            "plain_ms": statistics.median(plain),
            "guarded_ms": statistics.median(guarded),
            "ratio": ratio,
            "quartiles": [low, high],
            "overall": sum(guarded) / sum(plain),
        }
        print(
            f"{name}, {clock} time a step: alone {statistics.median(plain):.2f} ms, under steady run "
            f"{statistics.median(guarded):.2f} ms, x{ratio:.3f} [{low:.3f}, {high:.3f}]"
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="cpu_small")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--warm-up", type=int, default=12, help="first steps left out; past 200 the loop is recorded less"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.work)
        return
    result = measure(arguments.work, rounds=arguments.rounds, steps=arguments.steps, warm_up=arguments.warm_up)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
