"""Starts ranks cheaply: torch is imported once, and each rank of each job is a fork of this process.

Reads one JSON line a job; each rank trains its scenarios one after another and leaves the results in
`folder/rank<N>.json`. The answer is one JSON line with the exit status of each rank, null for one that had to be ended.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drivers import guard_loop, running
from instruments import sampled
from scenario import Result, Scenario, collect, ended, hearing, make, plain_loop
from torch.distributed.fsdp import fully_shard

WORLD, LIMIT_S = 2, 90.0
TIMEOUT_S = float(os.environ.get("RANKS_TIMEOUT_S", "60"))

for late in ("pandas", "pyarrow", "torch._dynamo", "torch.distributed.tensor", "steadygrad.diagnosis.diagnose"):
    with contextlib.suppress(ImportError):
        importlib.import_module(late)


def shard(model: Any) -> Any:
    for module in model.children():
        if isinstance(module, torch.nn.Linear):
            fully_shard(module)
    fully_shard(model)
    return model


def in_ddp(model: Any, *, frozen: bool) -> Any:
    """What is frozen at first must be known to DDP, and may then be unused."""
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=frozen)


def train(scenario: Scenario, *, rank: int, guarded: bool, run_dir: str | None) -> Result:
    result = Result()
    wrap = shard if scenario.sharding == "fsdp2" else functools.partial(in_ddp, frozen=bool(scenario.changes))
    it = make(scenario, rank=rank, leave_out=False, wrap=wrap, norm="layer" if wrap is shard else "batch")
    if scenario.breaks not in ("", "list") and scenario.fault_rank not in (None, rank):
        it.scenario = scenario.but(breaks="")
    with hearing(result):
        try:
            if guarded:
                guard_loop(it, result, Path(run_dir) if run_dir else None)
            else:
                with running(it, result):
                    plain_loop(it)
        except Exception as error:
            ended(result, error)
            traceback.print_exc()
    return collect(it, result)


def child(rank: int, job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status, results = 0, []
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "meeting"), WORLD)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=TIMEOUT_S))
        for plain in job["scenarios"]:
            scenario = Scenario.load(plain)
            run = functools.partial(train, rank=rank, guarded=job["guarded"], run_dir=job["run_dir"])
            many = scenario.breaks.startswith("sample:")
            results += [each.to_json() for each in (sampled(scenario, run) if many else [run(scenario)])]
            (folder / f"rank{rank}.json").write_text(json.dumps(results))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_for(pids: list[int]) -> list[int | None]:
    deadline, done = time.monotonic() + LIMIT_S, {}
    while len(done) < len(pids):
        for pid in [pid for pid in pids if pid not in done]:
            late = time.monotonic() > deadline
            if late:
                os.kill(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if found:
                done[pid] = None if late else os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [done[pid] for pid in pids]


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pids = []
        for rank in range(WORLD):
            pid = os.fork()
            if pid == 0:
                child(rank, job)
            pids.append(pid)
        print(json.dumps(wait_for(pids)), flush=True)


if __name__ == "__main__":
    main()
