"""What a diagnosis costs, in plain steps of the same model, side by side in one run.

    python -m benchmarks.diagnosis --work gpt2_124m

The failing step is real: a weighted loss whose weights sum to zero for one row of the batch, 0/0.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import steadygrad as sg
from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.replay.guard_step import GuardStep
from steadygrad.engine.step.window import Window

from .overhead import DEVICE, hardware, synchronise
from .workloads import WORKLOADS, build


def weighted_loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast(batch["ids"].device.type, dtype=torch.bfloat16):
        logits = model(batch["ids"][:, :-1])
    each = F.cross_entropy(logits.float().transpose(1, 2), batch["ids"][:, 1:], reduction="none")
    weights = batch["weights"]
    return ((each * weights).sum(1) / weights.sum(1)).mean()


def measure(name: str) -> dict[str, Any]:
    model, optimizer, ids = build(WORKLOADS[name], DEVICE)
    good = {"ids": ids, "weights": torch.ones_like(ids[:, 1:], dtype=torch.float32)}
    bad = {"ids": ids, "weights": good["weights"].clone()}
    bad["weights"][1] = 0.0
    guard = sg.Guard(model, optimizer, weighted_loss, max_grad_norm=1.0, diagnose="off")
    for _ in range(5):
        guard.step(good)
    synchronise()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(5):
        synchronise()
        start = time.perf_counter()
        guard.step(good)
        guard.settle()
        synchronise()
        times.append(time.perf_counter() - start)
    step = statistics.median(times)
    training_peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
    result: dict[str, Any] = {"step_ms": step * 1e3}
    parts = guard._loop.parts
    names = {id(parameter): name for name, parameter in guard.model.named_parameters()}
    for depth in ("origin", "full"):
        window = Window()
        window.add(bad, "bad", {}, parts.forward.take())
        replayable = GuardStep(
            program=parts.program, forward=parts.forward, state=parts.state, window=window, step=5,
            symptom="nan_loss", findings=(), history=(), names=names, max_grad_norm=1.0,
        )  # fmt: skip
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        synchronise()
        start = time.perf_counter()
        found = diagnose(replayable, depth=depth)
        synchronise()
        took = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() / training_peak if training_peak else None
        origin = found.origin
        result[depth] = {
            "steps": took / step,
            "peak_over_training": peak,
            "op": origin.op if origin else None,
            "cause": found.cause.slug if found.cause else None,
            "rows": found.rows,
            "verified": [trial.remedy.slug for trial in found.remedies],
        }
        print(f"  {name} {depth:7s} {took / step:7.1f} plain steps, peak memory x{peak or 0:.2f}  {result[depth]}")
    guard.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="What a diagnosis costs, in plain steps.")
    parser.add_argument("--work", nargs="*", choices=sorted(WORKLOADS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    print(hardware())
    results: dict[str, Any] = {"hardware": hardware()}
    for name in arguments.work or (["gpt2_124m"] if DEVICE == "cuda" else ["cpu_small"]):
        results[name] = measure(name)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
