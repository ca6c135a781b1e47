"""What a healthy step costs the host: processor time of a small step, guarded and plain, on a CPU.

    python -m benchmarks.host_cost --json benchmarks/results/host-cost-....json

Plain, `sg.Guard` and `sg.attach(optimizer, model=model)` take turns step by step in one process. Under `steady run` a
whole process is guarded, so a guarded and a plain process take turns, a hundred steps at a time. The figures are
medians over all steps, after the first 400, in which more is looked at. Processor time of the thread that trains.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.integrations.zero_code.launch.run_options import RunOptions

from .overhead import hardware

Step = Callable[[], Any]
WARM_UP, AT_ONCE = 400, 100


def parts() -> tuple[nn.Module, torch.optim.Optimizer, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    layers = [module for _ in range(2) for module in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), *layers, nn.Linear(64, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), (torch.randn(64, 32), torch.randn(64, 1))


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> Step:
    parameters = list(model.parameters())

    def step() -> None:
        loss_fn(model, batch).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def guarded(run_dir: str) -> Step:
    model, optimizer, batch = parts()
    guard = sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0, run_dir=run_dir)
    return lambda: guard.step(batch)


def attached(run_dir: str) -> Step:
    model, optimizer, batch = parts()
    sg.attach(optimizer, model=model, run_dir=run_dir)
    return plain(model, optimizer, batch)


def timed(step: Step) -> float:
    start = time.thread_time_ns()
    step()
    return (time.thread_time_ns() - start) / 1e6


def worker() -> None:
    """Runs as many steps as each line on standard input says, and answers with the milliseconds of each."""
    step = plain(*parts())
    for line in sys.stdin:
        print(json.dumps([timed(step) for _ in range(int(line))]), flush=True)


def under_steady_run(steps: int, folder: str) -> tuple[float, float]:
    """The median step alone and under `steady run`."""
    guarded_environment = RunOptions(run_dir=f"{folder}/run").environment(os.environ)
    command = [sys.executable, "-m", "benchmarks.host_cost", "--worker"]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        for environment in (dict(os.environ), guarded_environment)
    ]

    def answer(process: subprocess.Popen[str], count: int) -> list[float]:
        assert process.stdin is not None
        assert process.stdout is not None
        print(count, file=process.stdin, flush=True)
        read: list[float] = json.loads(process.stdout.readline())
        return read

    for process in processes:
        answer(process, WARM_UP)
    times: list[list[float]] = [[], []]
    for _ in range(steps // AT_ONCE):
        for process, own in zip(processes, times, strict=True):
            own += answer(process, AT_ONCE)
    for process in processes:
        process.communicate()
    assert (Path(folder) / "run" / "run.json").is_file(), "the guarded process was not guarded"
    return statistics.median(times[0]), statistics.median(times[1])


def measure(steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        loops = {"plain": plain(*parts()), "guard": guarded(f"{folder}/guard"), "attach": attached(f"{folder}/attach")}
        for _ in range(WARM_UP):
            for step in loops.values():
                step()
        times = {name: list[float]() for name in loops}
        for _ in range(steps):
            for name, step in loops.items():
                times[name].append(timed(step))
        medians = {name: statistics.median(each) for name, each in times.items()}
        alone, run = under_steady_run(steps, folder)
    added = {name: value - medians["plain"] for name, value in medians.items() if name != "plain"}
    return {
        "hardware": hardware(),
        "steps": steps,
        "plain_ms": {"in one process": medians["plain"], "in its own process": alone},
        "added_ms": {**added, "steady run": run - alone},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.worker:
        worker()
        return
    result = measure(arguments.steps)
    print(f"plain step {result['plain_ms']['in one process']:.3f} ms of processor time")
    for name, value in result["added_ms"].items():
        print(f"{name:12} +{value:.3f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
