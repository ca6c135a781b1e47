"""Starts guarded training runs that are meant to be killed. Not a test: run by test_guard_kill.py.

Reads JSON lines and forks a run for each from one process that has imported everything, so that a run is at work within
milliseconds. `{"run": dir, "mode": "now", "after": 0.2}` kills it with SIGKILL after so many seconds (null: lets it
end) and prints how it ended. `{"write": dir, "at": 7}` forks a writer that kills itself at its seventh call to the
system while it overwrites and rotates checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "engine"))

from specimens import batches, make_guard, setup, state_of

from steadygrad.engine.state.checkpoint_store import CheckpointStore
from steadygrad.engine.state.forward_state import ForwardState
from steadygrad.engine.state.training_state import TrainingState

NUM_BATCHES = 90
BAD = (3, 40, 41, 77)
torch.set_num_threads(1)


def training_data() -> list[torch.Tensor]:
    data = batches(NUM_BATCHES)
    for number in BAD:
        data[number] = data[number].clone()
        data[number][1, 2] = float("nan")
    return data


def digest(state: dict[str, Any]) -> str:
    """One word for all the bits of a `state_of`."""
    total = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if isinstance(value, torch.Tensor):
            value = (str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist())
        total.update(repr((name, value)).encode())
    return total.hexdigest()


def train(run: Path, mode: str) -> None:
    it = setup()
    guard = make_guard(it.model, it.optimizer, it.loss_fn, max_grad_norm=1.0, scheduler=it.scheduler, ema=it.ema,
                       run_dir=run, checkpoint_every=5, keep_checkpoints=2, resume=True, settle=mode)  # fmt: skip
    for batch in training_data()[guard.batches_seen :]:
        guard.step(batch)
    summary = guard.summary()
    guard.close()
    keep = {word: summary[word] for word in ("steps", "applied", "skipped", "guard_faults", "last_bad_step")}
    (run.parent / f"{run.name}.json").write_text(json.dumps({"digest": digest(state_of(it)), **keep}))


def write_and_die(run: Path, at: int) -> None:
    """Save a checkpoint of another step over and over; the process dies at its `at`-th call to the system."""
    model = torch.nn.Linear(4, 2)
    forward = ForwardState([model])
    state = TrainingState(parameters=dict(model.named_parameters()), optimizers=(), forward=forward)
    store = CheckpointStore(run / "snapshots", state, every=1, keep=1)
    store.save(5, {"saved": 0})
    calls = 0

    def deadly(honest: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return honest(*args, **options)

        return call

    for home, names in ((os, ("open", "fsync", "rename", "mkdir", "unlink", "rmdir", "close")), (shutil, ("rmtree",))):
        for name in names:
            setattr(home, name, deadly(getattr(home, name)))
    store.save(5, {"saved": 1})
    store.save(6, {"saved": 2})


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        if "run" in wanted:
            pid = fork(lambda wanted=wanted: train(Path(wanted["run"]), wanted["mode"]))
            if wanted["after"] is not None:
                time.sleep(wanted["after"])
                os.kill(pid, signal.SIGKILL)
        else:
            pid = fork(lambda wanted=wanted: write_and_die(Path(wanted["write"]), wanted["at"]))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
