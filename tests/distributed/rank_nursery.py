"""Starts ranks cheaply: torch is imported once, and every rank of every scenario is a fork of this process.

    python rank_nursery.py        reads one JSON line a scenario: {"scenario", "world", "folder", "options", "limit"}

Each rank runs `rank_scenarios.<scenario>` and leaves what it returns, or how it failed, in `folder/rank<N>.json`. The
answer is one JSON line: the exit status of every rank, negative for a signal, and null for a rank that had to be ended
because the limit had passed, which is what a hang looks like.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import rank_scenarios  # imports torch, once for all ranks to come

# What a first step, a journal and a first incident would import in every rank again.
for late in ("pandas", "pyarrow", "torch._dynamo", "torch.distributed.tensor", *rank_scenarios.OURS):
    with contextlib.suppress(ImportError):
        importlib.import_module(late)


def child(rank: int, job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 0
    told: dict[str, Any] = {}
    try:
        told = {"returned": rank_scenarios.run(job["scenario"], rank, job["world"], folder, job["options"])}
    except BaseException as error:
        traceback.print_exc()
        told = {"raised": type(error).__name__, "message": str(error), "notes": getattr(error, "__notes__", [])}
        status = getattr(error, "exit_code", 1)
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # as after a kill: nothing is tidied up, so no exit handler can wait for anybody


def wait_for(pids: list[int], limit: float) -> list[int | None]:
    deadline = time.monotonic() + limit
    ended: dict[int, int | None] = {}
    while len(ended) < len(pids):
        for pid in pids:
            if pid in ended:
                continue
            late = time.monotonic() > deadline
            if late:
                os.kill(pid, signal.SIGKILL)
            found, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if found:
                ended[pid] = None if late else os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [ended[pid] for pid in pids]


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pids = []
        for rank in range(job["world"]):
            pid = os.fork()
            if pid == 0:
                child(rank, job)
            pids.append(pid)
        print(json.dumps(wait_for(pids, job["limit"])), flush=True)


if __name__ == "__main__":
    main()
