"""What watching a training step costs: every way beside the loop with `clip_grad_norm_`, in one run.

    python -m benchmarks.overhead                     # the workloads that fit this machine
    python -m benchmarks.overhead --work small_10m --fast --rounds 9

Loops take turns within each round, so drift of the machine hits all alike; the figure is the median over rounds of
each loop's time divided by the reference's time in the same round.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from .loops import FAST, LOOPS, Loop
from .workloads import WORKLOADS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(loop: Loop, steps: int) -> float:
    synchronise()
    start = time.perf_counter()
    for _ in range(steps):
        loop.step()
    synchronise()
    return (time.perf_counter() - start) / steps * 1e3


def measure(
    name: str, *, compiled: bool, rounds: int, steps: int, only: tuple[str, ...] | None, warm_up: int = 12
) -> dict[str, Any]:
    loops: dict[str, Loop] = {}
    for key, kind in LOOPS.items():
        if (only is not None and key not in only) or (compiled and not kind.compiles):
            continue
        try:
            loop = kind(WORKLOADS[name], DEVICE, compiled)
            # Past the early audits and vitals; the second snapshot, with the moments, falls into the measured rounds.
            for _ in range(warm_up if key.startswith("guard") else 4):
                loop.step()
            synchronise()
            loops[key] = loop
        except Exception as error:
            print(f"  {key} left out: {type(error).__name__}: {str(error)[:120]}")
    times: dict[str, list[float]] = {key: [] for key in loops}
    for _ in range(rounds):
        for key, loop in loops.items():
            times[key].append(timed(loop, max(2, steps // 3) if loop.slow else steps))
    for loop in loops.values():
        loop.close()
    print(f"\n{name}, {'torch.compile' if compiled else 'eager'}, {hardware()}")
    rows = {}
    for key, values in times.items():
        ratios = [value / base for value, base in zip(values, times["clip"], strict=True)]
        ratio, spread = statistics.median(ratios), statistics.quantiles(ratios, n=4) if len(ratios) > 3 else [0, 0, 0]
        overall = sum(values) / sum(times["clip"])
        rows[key] = {
            "ms": statistics.median(values), "ratio": ratio, "quartiles": [spread[0], spread[2]], "overall": overall
        }  # fmt: skip
        print(
            f"  {LOOPS[key].title:46s} {rows[key]['ms']:9.2f} ms   x{ratio:6.3f}  [{spread[0]:.3f}, {spread[2]:.3f}]"
            f"   all rounds x{overall:.3f}"
        )
    return rows


def synchronising_calls(name: str) -> dict[str, float]:
    """Host synchronisations a step, counted by torch's own sync debug mode."""
    counts = {}
    for key in ("clip", "clip_item", "scaler_fp16", "guard", "guard_folded"):
        loop = LOOPS[key](WORKLOADS[name], DEVICE, False)
        for _ in range(12):  # past the early audits
            loop.step()
        synchronise()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(8):
                loop.step()
        torch.cuda.set_sync_debug_mode("default")
        counts[key] = len([w for w in seen if "synchroniz" in str(w.message)]) / 8
        print(f"  {LOOPS[key].title:46s} {counts[key]:.2f} synchronising calls a step")
        loop.close()
    return counts


def extra_memory(name: str) -> dict[str, float]:
    """Peak device memory of guarded training beyond the reference loop, as a share of the model's parameters."""
    peaks = {}
    for key in ("clip", "guard", "guard_folded", "guard_no_snapshots"):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        loop = LOOPS[key](WORKLOADS[name], DEVICE, False)
        for _ in range(3):
            loop.step()
        synchronise()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(6):
            loop.step()
        synchronise()
        peaks[key] = torch.cuda.max_memory_allocated() - before
        size = sum(p.numel() * p.element_size() for p in loop.parameters)
        loop.close()
        del loop
    shares = {key: (peak - peaks["clip"]) / size for key, peak in peaks.items()}
    for key, share in shares.items():
        print(f"  {LOOPS[key].title:46s} {share * 100:+.4f} % of the model's bytes at the peak")
    return shares


def hardware() -> str:
    if DEVICE == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", nargs="*", choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--fast", action="store_true", help="leave out the peers that take minutes")
    parser.add_argument("--loops", nargs="*", choices=sorted(LOOPS), help="only these, beside the reference")
    parser.add_argument("--skip-audits", action="store_true", help="leave out synchronising calls and memory")
    parser.add_argument("--compiled", action="store_true", help="also measure under torch.compile")
    parser.add_argument("--warm-up", type=int, default=12, help="first guarded steps left out; the first 200 cost more")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    results: dict[str, Any] = {"hardware": hardware(), "warm_up": arguments.warm_up}
    names = arguments.work or (["small_10m", "gpt2_124m", "gpt_1300m"] if DEVICE == "cuda" else ["cpu_small"])
    for name in names:
        steps = arguments.steps or (8 if name in ("gpt_1300m", "cpu_small") else 20)
        only = FAST if arguments.fast else None
        if name == "gpt_1300m":
            only = ("clip", "guard", "guard_folded", "clip_item")  # more do not fit beside each other
        if arguments.loops:
            only = ("clip", *arguments.loops)
        for compiled in (False, True) if arguments.compiled and name == "gpt2_124m" else (False,):
            key = f"{name}/{'compiled' if compiled else 'eager'}"
            results[key] = measure(
                name, compiled=compiled, rounds=arguments.rounds, steps=steps, only=only, warm_up=arguments.warm_up
            )
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
    if DEVICE == "cuda" and not arguments.skip_audits:
        results["synchronising_calls"] = synchronising_calls("small_10m")
        results["extra_memory"] = extra_memory("gpt2_124m")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
