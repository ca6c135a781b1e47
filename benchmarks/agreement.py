"""What it costs that the ranks of a run agree on every step, beside one bare all_reduce, in one run.

    python -m benchmarks.agreement                    # 2 and 4 ranks on this machine's CPU, over gloo
    python -m benchmarks.agreement --ranks 2 --json benchmarks/results/agreement.json

Ranks are forks of this process and meet at a file. Within each round all things measured take turns, so that drift of
the machine hits them alike. For each number: the median over rounds of a mean over calls, on rank 0; a step's is
also given as the median over rounds of its ratio to the plain loop's in the same round.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import steadygrad as sg
from steadygrad.engine.distributed.collectives import RankCollectives
from steadygrad.engine.distributed.consensus import SingleRank
from steadygrad.integrations import build as start

WIDTH, BATCH = 256, 64


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = (model(batch) - batch).square().mean()
    return loss


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def plain_step(kind: str) -> Callable[[], Any]:
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        loss_fn(model, batch).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def guarded_step(kind: str) -> Callable[[], Any]:
    model = build(kind)
    guard = sg.Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_fn, max_grad_norm=1.0, snapshots="off")
    batch = torch.randn(BATCH, WIDTH)
    return lambda: guard.step(batch)


def unagreed_step(kind: str) -> Callable[[], Any]:
    """The guarded step as it would be if the ranks did not ask each other: what is left is the guard's own cost."""
    agreeing = start.make_consensus
    start.make_consensus = lambda *_, **__: SingleRank()
    try:
        return guarded_step(kind)
    finally:
        start.make_consensus = agreeing


def bare_all_reduce() -> Callable[[], Any]:
    number = torch.zeros(1)
    return lambda: dist.all_reduce(number)


def agreement() -> Callable[[], Any]:
    """One step's agreement by itself, waited for at once: nothing to hide behind."""
    ranks = RankCollectives(torch.device("cpu"))
    ranks.introduce({}, num_micro=1, num_squares=0)
    terms = [{"loss": torch.tensor(1.0)}]
    count = 0

    def once() -> None:
        nonlocal count
        ranks.begin(count, count, terms)
        ranks.finish(1)
        count += 1

    return once


def collectives() -> int:
    return sum(int(group._get_sequence_number_for_group()) for group in dist.distributed_c10d._world.pg_map)


def measure(rounds: int, calls: int) -> dict[str, Any]:
    things: dict[str, Callable[[], Any]] = {
        "one bare all_reduce of one number": bare_all_reduce(),
        "the agreement of one step, by itself": agreement(),
        "DDP step, plain loop with clip": plain_step("ddp"),
        "DDP step, guarded, not agreeing": unagreed_step("ddp"),
        "DDP step, guarded": guarded_step("ddp"),
        "FSDP2 step, plain loop with clip": plain_step("fsdp2"),
        "FSDP2 step, guarded, not agreeing": unagreed_step("fsdp2"),
        "FSDP2 step, guarded": guarded_step("fsdp2"),
    }
    counted = {}
    for name, call in things.items():
        for _ in range(12):  # past the guard's early audits and the rebuilding of DDP's buckets
            call()
        before = collectives()
        call()
        counted[name] = collectives() - before
    times: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(rounds):
        for name, call in things.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    rows = {
        name: {"us": statistics.median(values), "collectives": counted[name]} for name, values in times.items()
    }  # fmt: skip
    for kind in ("DDP", "FSDP2"):
        for name in (f"{kind} step, guarded, not agreeing", f"{kind} step, guarded"):
            pairs = zip(times[name], times[f"{kind} step, plain loop with clip"], strict=True)
            rows[name]["ratio"] = statistics.median(guarded / plain for guarded, plain in pairs)
    return rows


def rank_main(rank: int, world: int, folder: Path, rounds: int, calls: int) -> None:
    torch.set_num_threads(1)
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    store = dist.FileStore(str(folder / "meeting"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=300))
    rows = measure(rounds, calls)
    if rank == 0:
        (folder / "rows.json").write_text(json.dumps(rows))


def run(world: int, rounds: int, calls: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        pids = []
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                try:
                    rank_main(rank, world, Path(name), rounds, calls)
                    os._exit(0)
                finally:
                    os._exit(1)
            pids.append(pid)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if any(statuses):
            raise SystemExit(f"ranks ended with {statuses}")
        rows: dict[str, Any] = json.loads((Path(name) / "rows.json").read_text())
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    hardware = f"{platform.machine()} CPU, {os.cpu_count()} cores, gloo, torch {torch.__version__}"
    results: dict[str, Any] = {"hardware": hardware}
    for world in arguments.ranks:
        results[f"{world} ranks"] = rows = run(world, arguments.rounds, arguments.calls)
        print(f"\n{world} ranks, {hardware}")
        for name, row in rows.items():
            ratio = f"   x{row['ratio']:.3f} of the plain loop" if "ratio" in row else ""
            print(f"  {name:40s} {row['us']:10.0f} us   {row['collectives']:2d} collectives{ratio}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
